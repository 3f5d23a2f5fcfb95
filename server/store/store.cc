// SPDX-License-Identifier: Apache-2.0
#include "server/store/store.h"

#include <sys/stat.h>

#include <chrono>

#include "base/str_cat.h"
#include "server/store/damage.h"
#include "server/store/migrate.h"

namespace reprise::server {

namespace {

constexpr size_t kMaxIdleReaders = 4;

int64_t FileBytes(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

// A file may have the right schema version but lack tables.
Status CheckTables(Database& database, const std::string& path) {
  constexpr char kTables[] =
      "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
  ASSIGN_OR_RETURN(Database fresh, Database::Open(":memory:"));
  RETURN_IF_ERROR(Migrate(fresh, Migrations()));
  ASSIGN_OR_RETURN(Statement wanted, fresh.Prepare(kTables));
  ASSIGN_OR_RETURN(
      Statement has,
      database.Prepare("SELECT 1 FROM sqlite_schema WHERE name = ?1"));
  while (true) {
    ASSIGN_OR_RETURN(const bool more, wanted.Step());
    if (!more) return OkStatus();
    has.Reset();
    RETURN_IF_ERROR(has.Bind(1, wanted.Text(0)));
    ASSIGN_OR_RETURN(const bool found, has.Step());
    if (found) continue;
    return {Code::kDataLoss,
            StrCat(path, ": the table ", std::string(wanted.Text(0)),
                   " is missing")};
  }
}

}  // namespace

int64_t RealtimeNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  ASSIGN_OR_RETURN(Database writer, Database::Open(options.path));
  RETURN_IF_ERROR(CheckWhole(writer, options.path));
  RETURN_IF_ERROR(Migrate(writer, Migrations()));
  RETURN_IF_ERROR(CheckTables(writer, options.path));
  // A read-only file opens without an error, so try to write now.
  RETURN_IF_ERROR(writer.Transaction([&]() -> Status {
    ASSIGN_OR_RETURN(const int64_t version, writer.UserVersion());
    return writer.Execute(StrCat("PRAGMA user_version=", version));
  }));
  if (options.max_pages > 0) {
    RETURN_IF_ERROR(
        writer.Execute(StrCat("PRAGMA max_page_count=", options.max_pages)));
  }
  return std::unique_ptr<Store>(new Store(options, std::move(writer)));
}

Status Store::Write(const std::function<Status(Database&)>& body) {
  const std::lock_guard lock(writer_mutex_);
  const Status status =
      writer_.Transaction([&]() -> Status { return body(writer_); });
  const std::lock_guard degraded_lock(degraded_mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (status.ok()) {
    if (now - last_failure_ >= degraded_for_) degraded_.clear();
  } else if (status.code() == Code::kResourceExhausted ||
             status.code() == Code::kPermissionDenied ||
             status.code() == Code::kDataLoss) {
    degraded_ = status.message();
    last_failure_ = now;
  }
  return status;
}

Status Store::Read(const std::function<Status(Database&)>& body) {
  std::vector<Database> reader;  // exactly one element
  {
    const std::lock_guard lock(readers_mutex_);
    if (!idle_readers_.empty()) {
      reader.push_back(std::move(idle_readers_.back()));
      idle_readers_.pop_back();
    }
  }
  if (reader.empty()) {
    ASSIGN_OR_RETURN(Database opened, Database::Open(path_));
    RETURN_IF_ERROR(opened.Execute("PRAGMA query_only=ON"));
    reader.push_back(std::move(opened));
  }
  Database& database = reader.front();
  RETURN_IF_ERROR(database.Execute("BEGIN"));
  const Status status = body(database);
  RETURN_IF_ERROR(database.Execute("ROLLBACK"));
  const std::lock_guard lock(readers_mutex_);
  if (idle_readers_.size() < kMaxIdleReaders) {
    idle_readers_.push_back(std::move(database));
  }
  return status;
}

std::string Store::degraded() const {
  const std::lock_guard lock(degraded_mutex_);
  return degraded_;
}

int64_t Store::SizeBytes() const {
  return FileBytes(path_) + FileBytes(path_ + "-wal");
}

Status Store::Checkpoint() {
  const std::lock_guard lock(writer_mutex_);
  {
    const std::lock_guard readers_lock(readers_mutex_);
    idle_readers_.clear();
  }
  return writer_.Execute("PRAGMA wal_checkpoint(TRUNCATE)");
}

}  // namespace reprise::server
