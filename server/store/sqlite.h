// SPDX-License-Identifier: Apache-2.0
//
// A thin, safe wrapper around SQLite: a connection, prepared statements, errors
// as Status. A connection serves one thread at a time.
//
//   ASSIGN_OR_RETURN(Database db, Database::Open(path));
//   ASSIGN_OR_RETURN(Statement insert,
//                    db.Prepare("INSERT INTO t VALUES (?, ?)"));
//   RETURN_IF_ERROR(insert.Run(int64_t{1}, "one"));  // binds, steps, resets
//   ASSIGN_OR_RETURN(Statement all, db.Prepare("SELECT a, b FROM t"));
//   while (true) {
//     ASSIGN_OR_RETURN(bool row, all.Step());
//     if (!row) break;
//     use(all.Int(0), all.Text(1));
//   }
//
// Codes: RESOURCE_EXHAUSTED disk full; PERMISSION_DENIED read-only or no
// access; UNAVAILABLE busy; DATA_LOSS corrupt; ALREADY_EXISTS constraint.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/status.h"

namespace reprise::server {

// Bytes to be bound as a BLOB rather than as TEXT.
struct Blob {
  std::string_view bytes;
};

class Statement {
 public:
  // Binds by position, from 1.
  Status Bind(int index, int64_t value);
  Status Bind(int index, double value);
  Status Bind(int index, std::string_view text, bool copied = true);
  Status Bind(int index, Blob blob, bool copied = true);

  // Returns true if there is a row; false when done, with the statement reset.
  StatusOr<bool> Step();
  void Reset();

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

  int64_t Int(int column) const;
  double Real(int column) const;
  // Valid until the next Step or Reset.
  std::string_view Text(int column) const;
  std::string_view Bytes(int column) const;
  bool IsNull(int column) const;

 private:
  friend class Database;
  struct Finalize {
    void operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
  };
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}

  template <typename... Args>
  Status BindEach(bool copied, const Args&... args) {
    Reset();
    int index = 0;
    Status status;
    ((status = status.ok() ? BindAny(++index, args, copied) : status), ...);
    return status;
  }

  template <typename T>
  Status BindAny(int index, const T& value, bool copied) {
    if constexpr (std::is_same_v<T, Blob>) {
      return Bind(index, value, copied);
    } else if constexpr (std::is_floating_point_v<T>) {
      return Bind(index, static_cast<double>(value));
    } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      return Bind(index, static_cast<int64_t>(value));
    } else {
      return Bind(index, std::string_view(value), copied);
    }
  }

  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

class Database {
 public:
  // Opens the file, creating it if absent. WAL, synchronous=NORMAL, foreign
  // keys on, busy timeout 2 s, auto_vacuum=INCREMENTAL for new files.
  // `page_bytes`: page size of a new file, a power of two up to 64 KiB.
  static StatusOr<Database> Open(const std::string& path,
                                 int page_bytes = 4096);

  StatusOr<Statement> Prepare(std::string_view sql);

  // Runs statements separated by semicolons.
  Status Execute(const std::string& sql);

  // BEGIN IMMEDIATE, `body`, COMMIT; ROLLBACK if the body fails.
  template <typename Body>
  Status Transaction(Body&& body) {
    RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    Status status = body();
    if (status.ok()) status = Execute("COMMIT");
    if (!status.ok()) (void)Execute("ROLLBACK");
    return status;
  }

  int64_t changes() const;
  int64_t last_insert_rowid() const;

  // PRAGMA user_version: the number of the last migration applied.
  StatusOr<int64_t> UserVersion();

 private:
  struct Close {
    void operator()(sqlite3* d) const { sqlite3_close_v2(d); }
  };
  explicit Database(sqlite3* database) : database_(database) {}
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace reprise::server
