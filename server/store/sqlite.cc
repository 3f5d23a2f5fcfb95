// SPDX-License-Identifier: Apache-2.0
#include "server/store/sqlite.h"

#include "base/str_cat.h"

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

}  // namespace

// ---- Statement ----

Status Statement::Bind(int index, int64_t value) {
  return ToStatus(sqlite3_db_handle(statement_.get()),
                  sqlite3_bind_int64(statement_.get(), index, value), "bind");
}

Status Statement::Bind(int index, double value) {
  return ToStatus(sqlite3_db_handle(statement_.get()),
                  sqlite3_bind_double(statement_.get(), index, value), "bind");
}

Status Statement::Bind(int index, std::string_view text, bool copied) {
  // An empty view may hold a null pointer, which SQLite would store as NULL.
  const char* data = text.data() != nullptr ? text.data() : "";
  return ToStatus(sqlite3_db_handle(statement_.get()),
                  sqlite3_bind_text64(
                      statement_.get(), index, data, text.size(),
                      copied ? SQLITE_TRANSIENT : SQLITE_STATIC, SQLITE_UTF8),
                  "bind");
}

Status Statement::Bind(int index, Blob blob, bool copied) {
  const char* data = blob.bytes.data() != nullptr ? blob.bytes.data() : "";
  return ToStatus(
      sqlite3_db_handle(statement_.get()),
      sqlite3_bind_blob64(statement_.get(), index, data, blob.bytes.size(),
                          copied ? SQLITE_TRANSIENT : SQLITE_STATIC),
      "bind");
}

StatusOr<bool> Statement::Step() {
  const int result = sqlite3_step(statement_.get());
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) {
    sqlite3_reset(statement_.get());
    return false;
  }
  Status status = ToStatus(sqlite3_db_handle(statement_.get()), result, "run");
  sqlite3_reset(statement_.get());
  return status;
}

void Statement::Reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

int64_t Statement::Int(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

double Statement::Real(int column) const {
  return sqlite3_column_double(statement_.get(), column);
}

std::string_view Statement::Text(int column) const {
  const auto* text = sqlite3_column_text(statement_.get(), column);
  if (text == nullptr) return {};
  return {reinterpret_cast<const char*>(text),
          static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

std::string_view Statement::Bytes(int column) const {
  const void* bytes = sqlite3_column_blob(statement_.get(), column);
  if (bytes == nullptr) return {};
  return {static_cast<const char*>(bytes),
          static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column))};
}

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

// ---- Database ----

// The value of PRAGMA auto_vacuum for INCREMENTAL.
constexpr int64_t kIncremental = 2;

StatusOr<Database> Database::Open(const std::string& path, int page_bytes) {
  sqlite3* raw = nullptr;
  const int result = sqlite3_open_v2(
      path.c_str(), &raw,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
      nullptr);
  Database database(raw);
  if (result != SQLITE_OK) {
    return PermissionDenied(
        StrCat(path, ": cannot open: ", sqlite3_errstr(result),
               "; check that the folder exists and is writable"));
  }
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, 2000);
  // Setting it writes to the file even if nothing changes: a reader would wait
  // for a writer, and fail on a full disk.
  int64_t vacuum = 0;
  {
    ASSIGN_OR_RETURN(Statement mode, database.Prepare("PRAGMA auto_vacuum"));
    ASSIGN_OR_RETURN(const bool row, mode.Step());
    if (row) vacuum = mode.Int(0);
  }
  if (vacuum != kIncremental) {
    RETURN_IF_ERROR(database.Execute(StrCat(
        "PRAGMA page_size=", page_bytes, "; PRAGMA auto_vacuum=INCREMENTAL")));
  }
  RETURN_IF_ERROR(
      database.Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; "
                       "PRAGMA foreign_keys=ON"));
  return database;
}

StatusOr<Statement> Database::Prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int result =
      sqlite3_prepare_v2(database_.get(), sql.data(),
                         static_cast<int>(sql.size()), &statement, nullptr);
  if (result != SQLITE_OK) return ToStatus(database_.get(), result, "prepare");
  return Statement(statement);
}

Status Database::Execute(const std::string& sql) {
  return ToStatus(
      database_.get(),
      sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr),
      "execute");
}

int64_t Database::changes() const { return sqlite3_changes64(database_.get()); }

int64_t Database::last_insert_rowid() const {
  return sqlite3_last_insert_rowid(database_.get());
}

StatusOr<int64_t> Database::UserVersion() {
  ASSIGN_OR_RETURN(Statement statement, Prepare("PRAGMA user_version"));
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

}  // namespace reprise::server
