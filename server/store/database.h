// SPDX-License-Identifier: Apache-2.0
//
// A connection to a database and its prepared statements, with errors as
// Status. A connection serves one thread at a time.
//
//   RETURN_IF_ERROR(db.Run("INSERT INTO t VALUES (?, ?)", int64_t{1}, "one"));
//   ASSIGN_OR_RETURN(const auto row, db.First("SELECT b FROM t WHERE a = ?", 1));
//   if (row) use(row->Text(0));
//   ASSIGN_OR_RETURN(Statement all, db.Select("SELECT a, b FROM t"));
//   return all.All([](const Statement& row) { return T(row.Int(0)); });
//
// Two kinds of databases are behind it: SQLite (sqlite.cc), which also holds
// the collector's spool, and PostgreSQL (postgres.cc). Both take the same SQL:
//
//   - parameters are ?, in order, or ?1, ?2 ...;
//   - ON CONFLICT names its columns, and columns of the row that is there are
//     written table.column;
//   - words that PostgreSQL reserves are quoted: "window";
//   - sum() is cast to BIGINT; the larger of two is a CASE;
//   - after a statement that failed, the transaction must end.
//
// Codes: RESOURCE_EXHAUSTED disk full; PERMISSION_DENIED read-only or no
// access; UNAVAILABLE busy, or the connection was lost; DATA_LOSS corrupt;
// ALREADY_EXISTS constraint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"

namespace reprise::server {

// Bytes to be bound as a BLOB rather than as TEXT.
struct Blob {
  std::string_view bytes;
};

// What a kind of database does for Statement; the comments are there.
class StatementDriver {
 public:
  virtual ~StatementDriver() = default;
  virtual Status Bind(int index, int64_t value) = 0;
  virtual Status Bind(int index, std::string_view text, bool copied) = 0;
  virtual Status Bind(int index, Blob blob, bool copied) = 0;
  virtual StatusOr<bool> Step() = 0;
  virtual void Reset() = 0;
  virtual int64_t Int(int column) const = 0;
  virtual std::string_view Bytes(int column) const = 0;
};

class Statement {
 public:
  explicit Statement(std::unique_ptr<StatementDriver> driver)
      : driver_(std::move(driver)) {}

  // Returns true if there is a row; false when done, with the statement reset.
  StatusOr<bool> Step() { return driver_->Step(); }
  void Reset() { driver_->Reset(); }

  // Resets, binds all arguments in order, and runs to the end. The arguments
  // are not copied: they are not used after the call.
  template <typename... Args>
  Status Run(const Args&... args) {
    RETURN_IF_ERROR(BindEach(/*copied=*/false, args...));
    while (true) {
      ASSIGN_OR_RETURN(const bool row, Step());
      if (!row) return OkStatus();
    }
  }

  // Resets and binds all arguments; for SELECT statements.
  template <typename... Args>
  Status BindAll(const Args&... args) {
    return BindEach(/*copied=*/true, args...);
  }

  // Returns what `from_row` makes of each row, from here to the last one.
  template <typename FromRow>
  auto All(FromRow from_row)
      -> StatusOr<std::vector<decltype(from_row(std::as_const(*this)))>> {
    std::vector<decltype(from_row(std::as_const(*this)))> all;
    while (true) {
      ASSIGN_OR_RETURN(const bool row, Step());
      if (!row) return all;
      all.push_back(from_row(std::as_const(*this)));
    }
  }

  int64_t Int(int column) const { return driver_->Int(column); }
  // Valid until the next Step or Reset.
  std::string_view Text(int column) const { return driver_->Bytes(column); }
  std::string_view Bytes(int column) const { return driver_->Bytes(column); }

 private:
  template <typename... Args>
  Status BindEach([[maybe_unused]] bool copied, const Args&... args) {
    Reset();
    [[maybe_unused]] int index = 0;
    Status status;
    ((status = status.ok() ? BindAny(++index, args, copied) : status), ...);
    return status;
  }

  template <typename T>
  Status BindAny(int index, const T& value, bool copied) {
    if constexpr (std::is_same_v<T, Blob>) {
      return driver_->Bind(index, value, copied);
    } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      return driver_->Bind(index, static_cast<int64_t>(value));
    } else {
      return driver_->Bind(index, std::string_view(value), copied);
    }
  }

  std::unique_ptr<StatementDriver> driver_;
};

// How much of an answer is fetched at once. Rows that hold chunks or graphs are
// large: kFew keeps few of them in memory, and is for reading inside Store::Read
// and Store::Write only.
enum class Fetch { kAll, kFew };

// What a kind of database does for Database; the comments are there.
class DatabaseDriver {
 public:
  virtual ~DatabaseDriver() = default;
  virtual StatusOr<std::unique_ptr<StatementDriver>> Prepare(
      std::string_view sql, Fetch fetch) = 0;
  virtual Status Execute(const std::string& sql) = 0;
  virtual Status Begin() = 0;
  virtual int64_t changes() const = 0;
  virtual StatusOr<int64_t> UserVersion() = 0;
  virtual Status SetUserVersion(int64_t version) = 0;
};

class Database {
 public:
  explicit Database(std::unique_ptr<DatabaseDriver> driver)
      : driver_(std::move(driver)) {}

  // Opens a SQLite file, creating it if absent. WAL, synchronous=NORMAL,
  // foreign keys on, busy timeout 2 s, auto_vacuum=INCREMENTAL for new files.
  // `page_bytes`: page size of a new file, a power of two up to 64 KiB.
  static StatusOr<Database> Open(const std::string& path,
                                 int page_bytes = 4096);

  StatusOr<Statement> Prepare(std::string_view sql, Fetch fetch = Fetch::kAll) {
    ASSIGN_OR_RETURN(std::unique_ptr<StatementDriver> statement,
                     driver_->Prepare(sql, fetch));
    return Statement(std::move(statement));
  }

  // Prepares a statement and runs it with these values, to the end.
  template <typename... Args>
  Status Run(std::string_view sql, const Args&... args) {
    ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
    return statement.Run(args...);
  }

  // Prepares a SELECT with these values.
  template <typename... Args>
  StatusOr<Statement> Select(std::string_view sql, const Args&... args) {
    ASSIGN_OR_RETURN(Statement select, Prepare(sql));
    RETURN_IF_ERROR(select.BindAll(args...));
    return select;
  }

  // Returns a SELECT at its first row; nothing if it has none.
  template <typename... Args>
  StatusOr<std::optional<Statement>> First(std::string_view sql,
                                           const Args&... args) {
    ASSIGN_OR_RETURN(Statement select, Select(sql, args...));
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return std::optional<Statement>();
    return std::optional<Statement>(std::move(select));
  }

  // Runs statements separated by semicolons.
  Status Execute(const std::string& sql) { return driver_->Execute(sql); }

  // BEGIN, `body`, COMMIT; ROLLBACK if the body fails. The transaction may
  // write from its beginning: it does not fail later because of another writer.
  template <typename Body>
  Status Transaction(Body&& body) {
    RETURN_IF_ERROR(driver_->Begin());
    Status status = body();
    if (status.ok()) status = Execute("COMMIT");
    if (!status.ok()) (void)Execute("ROLLBACK");
    return status;
  }

  // Rows that the last INSERT, UPDATE or DELETE changed.
  int64_t changes() const { return driver_->changes(); }

  // The number of the last migration applied.
  StatusOr<int64_t> UserVersion() { return driver_->UserVersion(); }
  Status SetUserVersion(int64_t version) {
    return driver_->SetUserVersion(version);
  }

 private:
  std::unique_ptr<DatabaseDriver> driver_;
};

// Returns the number that a SELECT has in its first row; 0 if it has none.
template <typename... Args>
StatusOr<int64_t> LoadNumber(Database& db, std::string_view sql,
                             const Args&... args) {
  ASSIGN_OR_RETURN(const auto row, db.First(sql, args...));
  return row ? row->Int(0) : 0;
}

}  // namespace reprise::server
