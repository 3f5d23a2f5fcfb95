// SPDX-License-Identifier: Apache-2.0
//
// A store in one SQLite file, with a write-ahead log. Keep reads short, because
// an open reader prevents the log from shrinking.
//
// Disk full: a failed Write sets `degraded`. A Write that succeeds a few seconds
// later clears it (between large writes that fail, small ones may succeed).
// Reading still works.
#include <sys/stat.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "base/str_cat.h"
#include "server/store/damage.h"
#include "server/store/migrate.h"
#include "server/store/postgres_store.h"
#include "server/store/store.h"

namespace reprise::server {

namespace {

constexpr size_t kMaxIdleReaders = 4;

int64_t FileBytes(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

class SqliteStore final : public Store {
 public:
  SqliteStore(const StoreOptions& options, Database writer)
      : path_(options.path),
        degraded_for_(options.degraded_for),
        writer_(std::move(writer)) {}

  Status Write(const std::function<Status(Database&)>& body) override {
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

  Status Read(const std::function<Status(Database&)>& body) override {
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

  std::string degraded() const override {
    const std::lock_guard lock(degraded_mutex_);
    return degraded_;
  }
  bool shared() const override { return false; }
  void Watch(std::function<void(const std::string&)>) override {}
  StatusOr<std::unique_ptr<Lease>> TryLease(const std::string&) override {
    return Unimplemented("a store in a file has one daemon, and no leases");
  }
  void AwaitLeases(std::chrono::milliseconds) override {}
  std::string place() const override { return path_; }
  int64_t SizeBytes() override {
    return FileBytes(path_) + FileBytes(path_ + "-wal");
  }
  // The bytes of used pages: removed data leaves free pages, which the file
  // returns later.
  StatusOr<int64_t> UsedBytes() override {
    return Get(LoadNumber<>,
               "SELECT (p.page_count - f.freelist_count) * s.page_size"
               " FROM pragma_page_count p, pragma_freelist_count f,"
               " pragma_page_size s");
  }

  Status GiveBack() override {
    return Write(
        [](Database& db) { return db.Execute("PRAGMA incremental_vacuum"); });
  }
  Status Checkpoint() override {
    const std::lock_guard lock(writer_mutex_);
    {
      const std::lock_guard readers_lock(readers_mutex_);
      idle_readers_.clear();
    }
    return writer_.Execute("PRAGMA wal_checkpoint(TRUNCATE)");
  }

 private:
  const std::string path_;
  const std::chrono::milliseconds degraded_for_;

  std::mutex writer_mutex_;
  Database writer_;

  std::mutex readers_mutex_;
  std::vector<Database> idle_readers_;

  mutable std::mutex degraded_mutex_;
  std::string degraded_;
  std::chrono::steady_clock::time_point last_failure_;
};

}  // namespace

namespace {

StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const StoreOptions& options) {
  ASSIGN_OR_RETURN(Database writer, Database::Open(options.path));
  RETURN_IF_ERROR(CheckWhole(writer, options.path));
  RETURN_IF_ERROR(Migrate(writer, Migrations()));
  RETURN_IF_ERROR(CheckTables(writer, options.path,
                              "SELECT 1 FROM sqlite_schema WHERE name = ?"));
  // A read-only file opens without an error, so try to write now.
  RETURN_IF_ERROR(writer.Transaction([&]() -> Status {
    ASSIGN_OR_RETURN(const int64_t version, writer.UserVersion());
    return writer.SetUserVersion(version);
  }));
  if (options.max_pages > 0) {
    RETURN_IF_ERROR(
        writer.Execute(StrCat("PRAGMA max_page_count=", options.max_pages)));
  }
  return std::unique_ptr<Store>(new SqliteStore(options, std::move(writer)));
}

}  // namespace

int64_t RealtimeNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

StatusOr<std::unique_ptr<Store>> Store::Open(const StoreOptions& options) {
  return options.url.empty() ? OpenSqliteStore(options)
                             : OpenPostgresStore(options);
}

}  // namespace reprise::server
