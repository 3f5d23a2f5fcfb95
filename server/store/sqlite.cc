// SPDX-License-Identifier: Apache-2.0
//
// Databases in a SQLite file.
#include <sqlite3.h>

#include <map>

#include "base/str_cat.h"
#include "server/store/database.h"

namespace reprise::server {

namespace {

Status ToStatus(sqlite3* database, int result, std::string_view doing) {
  if (result == SQLITE_OK || result == SQLITE_DONE || result == SQLITE_ROW) {
    return OkStatus();
  }
  const char* file = database ? sqlite3_db_filename(database, "main") : nullptr;
  std::string message = StrCat(
      file != nullptr && *file != '\0' ? file : "database", ": ", doing, ": ",
      database ? sqlite3_errmsg(database) : sqlite3_errstr(result));
  switch (result & 0xff) {
    case SQLITE_FULL:
      return ResourceExhausted(StrCat(message, "; free some disk space"));
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
    case SQLITE_AUTH:
      return PermissionDenied(
          StrCat(message, "; check that the folder exists and is writable"));
    case SQLITE_IOERR:
      // Also reported on a full disk, when the WAL or its index cannot grow.
      return ResourceExhausted(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Unavailable(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return {Code::kDataLoss, std::move(message)};
    case SQLITE_CONSTRAINT:
      return AlreadyExists(message);
    case SQLITE_TOOBIG:
    case SQLITE_RANGE:
    case SQLITE_MISMATCH:
      return InvalidArgument(message);
    default:
      return Internal(message);
  }
}

struct Finalize {
  void operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
};
using OwnedStatement = std::unique_ptr<sqlite3_stmt, Finalize>;

// Statements of one connection that nobody uses now, by their text: preparing
// one takes longer than most of them run. A list of runs runs three per run.
class PreparedStatements {
 public:
  // Returns null if there is none with this text.
  OwnedStatement Take(std::string_view sql) {
    const auto found = idle_.find(sql);
    if (found == idle_.end()) return nullptr;
    OwnedStatement statement = std::move(found->second);
    idle_.erase(found);
    return statement;
  }

  void Give(OwnedStatement statement) {
    const char* sql = sqlite3_sql(statement.get());
    if (closed_ || sql == nullptr || idle_.size() >= kMostIdle) return;
    sqlite3_reset(statement.get());
    sqlite3_clear_bindings(statement.get());
    idle_.emplace(sql, std::move(statement));
  }

  // The connection ends.
  void Close() {
    closed_ = true;
    idle_.clear();
  }

 private:
  static constexpr size_t kMostIdle = 128;

  std::multimap<std::string, OwnedStatement, std::less<>> idle_;
  bool closed_ = false;
};

class SqliteStatement final : public StatementDriver {
 public:
  SqliteStatement(OwnedStatement statement,
                  std::shared_ptr<PreparedStatements> from)
      : statement_(std::move(statement)), from_(std::move(from)) {}
  ~SqliteStatement() override { from_->Give(std::move(statement_)); }

  Status Bind(int index, int64_t value) override {
    return Bound(sqlite3_bind_int64(get(), index, value));
  }

  Status Bind(int index, std::string_view text, bool copied) override {
    // An empty view may hold a null pointer, which SQLite would store as NULL.
    const char* data = text.data() != nullptr ? text.data() : "";
    return Bound(sqlite3_bind_text64(get(), index, data, text.size(),
                                     copied ? SQLITE_TRANSIENT : SQLITE_STATIC,
                                     SQLITE_UTF8));
  }

  Status Bind(int index, Blob blob, bool copied) override {
    const char* data = blob.bytes.data() != nullptr ? blob.bytes.data() : "";
    return Bound(
        sqlite3_bind_blob64(get(), index, data, blob.bytes.size(),
                            copied ? SQLITE_TRANSIENT : SQLITE_STATIC));
  }

  StatusOr<bool> Step() override {
    const int result = sqlite3_step(get());
    if (result == SQLITE_ROW) return true;
    if (result == SQLITE_DONE) {
      sqlite3_reset(get());
      return false;
    }
    Status status = ToStatus(sqlite3_db_handle(get()), result, "run");
    sqlite3_reset(get());
    return status;
  }

  void Reset() override {
    sqlite3_reset(get());
    sqlite3_clear_bindings(get());
  }

  int64_t Int(int column) const override {
    return sqlite3_column_int64(get(), column);
  }

  std::string_view Bytes(int column) const override {
    const void* bytes = sqlite3_column_blob(get(), column);
    if (bytes == nullptr) return {};
    return {static_cast<const char*>(bytes),
            static_cast<size_t>(sqlite3_column_bytes(get(), column))};
  }

 private:
  sqlite3_stmt* get() const { return statement_.get(); }
  Status Bound(int result) const {
    return ToStatus(sqlite3_db_handle(get()), result, "bind");
  }

  OwnedStatement statement_;
  const std::shared_ptr<PreparedStatements> from_;
};

class SqliteDatabase final : public DatabaseDriver {
 public:
  explicit SqliteDatabase(sqlite3* database) : database_(database) {}
  ~SqliteDatabase() override { prepared_->Close(); }

  // What is fetched is one row at a time anyway.
  StatusOr<std::unique_ptr<StatementDriver>> Prepare(std::string_view sql,
                                                     Fetch) override {
    OwnedStatement statement = prepared_->Take(sql);
    if (statement == nullptr) {
      sqlite3_stmt* made = nullptr;
      const int result = sqlite3_prepare_v3(
          database_.get(), sql.data(), static_cast<int>(sql.size()),
          SQLITE_PREPARE_PERSISTENT, &made, nullptr);
      if (result != SQLITE_OK) {
        return ToStatus(database_.get(), result, "prepare");
      }
      statement.reset(made);
    }
    return std::unique_ptr<StatementDriver>(
        new SqliteStatement(std::move(statement), prepared_));
  }

  Status Execute(const std::string& sql) override {
    return ToStatus(
        database_.get(),
        sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr),
        "execute");
  }

  Status Begin() override { return Execute("BEGIN IMMEDIATE"); }

  int64_t changes() const override {
    return sqlite3_changes64(database_.get());
  }

  StatusOr<int64_t> UserVersion() override {
    return Pragma("PRAGMA user_version");
  }

  Status SetUserVersion(int64_t version) override {
    return Execute(StrCat("PRAGMA user_version=", version));
  }

  // The first number of a pragma's answer; 0 if there is none.
  StatusOr<int64_t> Pragma(std::string_view sql) {
    ASSIGN_OR_RETURN(const std::unique_ptr<StatementDriver> statement,
                     Prepare(sql, Fetch::kAll));
    ASSIGN_OR_RETURN(const bool row, statement->Step());
    return row ? statement->Int(0) : 0;
  }

 private:
  struct Close {
    void operator()(sqlite3* d) const { sqlite3_close_v2(d); }
  };
  const std::unique_ptr<sqlite3, Close> database_;
  const std::shared_ptr<PreparedStatements> prepared_ =
      std::make_shared<PreparedStatements>();
};

// The value of PRAGMA auto_vacuum for INCREMENTAL.
constexpr int64_t kIncremental = 2;

}  // namespace

StatusOr<Database> Database::Open(const std::string& path, int page_bytes) {
  sqlite3* raw = nullptr;
  const int result = sqlite3_open_v2(
      path.c_str(), &raw,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
      nullptr);
  auto database = std::make_unique<SqliteDatabase>(raw);
  if (result != SQLITE_OK) {
    return PermissionDenied(
        StrCat(path, ": cannot open: ", sqlite3_errstr(result),
               "; check that the folder exists and is writable"));
  }
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, 2000);
  // Setting it writes to the file even if nothing changes: a reader would wait
  // for a writer, and fail on a full disk.
  ASSIGN_OR_RETURN(const int64_t vacuum,
                   database->Pragma("PRAGMA auto_vacuum"));
  if (vacuum != kIncremental) {
    RETURN_IF_ERROR(database->Execute(StrCat(
        "PRAGMA page_size=", page_bytes, "; PRAGMA auto_vacuum=INCREMENTAL")));
  }
  RETURN_IF_ERROR(
      database->Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; "
                        "PRAGMA foreign_keys=ON"));
  return Database(std::move(database));
}

}  // namespace reprise::server
