// SPDX-License-Identifier: Apache-2.0
//
// The server's storage: one writer, a few readers.
//
//   Status s = store.Write([&](Database& db) { return InsertRun(db, run); });
//   Status s = store.Read([&](Database& db) { ... });
//
// Write runs its body in one transaction, one body at a time; nothing is stored
// unless the body returns OK. Read runs concurrently with writers, on its own
// snapshot. The row functions (run_rows.h, session_rows.h, chunk_rows.h,
// plan_rows.h) take the Database of either. A body runs at most once.
//
//   SQLite      one file for one daemon (sqlite_store.cc)
//   PostgreSQL  one database for any number of daemons: one body at a time over
//               all of them (postgres_store.h)
//
// If it cannot write (the disk is full, the connection is lost), a failed Write
// changes nothing and sets `degraded` to a sentence until writes succeed again.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "server/store/database.h"

namespace reprise::server {

struct StoreOptions {
  // Of the SQLite file; the folder must exist.
  std::string path = {};
  // "postgresql://...", instead of `path`. Without a password: libpq takes it
  // from the file PGPASSFILE or from PGPASSWORD.
  std::string url = {};
  // SQLite: largest file, in pages of 4 KiB; 0: no limit.
  int64_t max_pages = 0;
  // SQLite: `degraded` is kept at least this long after the last failure.
  std::chrono::milliseconds degraded_for = std::chrono::seconds(5);
};

// The right to do something alone, over all daemons of a store. Whoever holds it
// gives it back by destroying it; if its daemon dies, it is free at once.
class Lease {
 public:
  Lease() = default;
  virtual ~Lease() = default;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
};

class Store {
 public:
  // Creates or migrates the schema. FAILED_PRECONDITION: a newer version wrote
  // it, or there is no support for this kind; PERMISSION_DENIED: read-only, or
  // not let in; DATA_LOSS: not a database, or tables are missing; UNAVAILABLE:
  // PostgreSQL does not answer.
  static StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options);

  Store() = default;
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  virtual Status Write(const std::function<Status(Database&)>& body) = 0;
  virtual Status Read(const std::function<Status(Database&)>& body) = 0;

  // As Read, for what a function of the rows returns:
  //   ASSIGN_OR_RETURN(PlanRow row, store.Get(LoadPlan, plan_id));
  template <typename Load, typename... Args>
  auto Get(Load load, const Args&... args)
      -> decltype(load(std::declval<Database&>(), args...)) {
    std::optional<decltype(load(std::declval<Database&>(), args...))> loaded;
    RETURN_IF_ERROR(Read([&](Database& db) {
      return loaded.emplace(load(db, args...)).status();
    }));
    return *std::move(loaded);
  }

  // Empty if all is well, else one sentence.
  virtual std::string degraded() const = 0;

  // Whether other daemons write here, too. What is remembered of rows may then
  // be out of date.
  virtual bool shared() const = 0;

  // Calls `changed` with the id of each run that another daemon changed, or ""
  // if any run may have changed; on a thread of the store, until it is
  // destroyed. Only for shared stores.
  virtual void Watch(
      std::function<void(const std::string& run_id)> changed) = 0;

  // Returns the lease of this name, or null while another holder has it. Only for
  // shared stores.
  virtual StatusOr<std::unique_ptr<Lease>> TryLease(
      const std::string& name) = 0;

  // Waits until some lease was given back, or for so long.
  virtual void AwaitLeases(std::chrono::milliseconds within) = 0;

  // Where it is, for people.
  virtual std::string place() const = 0;

  // Bytes on disk, with logs; 0 if not known.
  virtual int64_t SizeBytes() = 0;

  // Bytes that removing runs makes smaller, at once.
  virtual StatusOr<int64_t> UsedBytes() = 0;

  // Returns the room of removed rows to the file system.
  virtual Status GiveBack() = 0;

  // Moves the write-ahead log into the file and empties it.
  virtual Status Checkpoint() = 0;
};

// Unix time in ns.
int64_t RealtimeNs();

}  // namespace reprise::server
