// SPDX-License-Identifier: Apache-2.0
//
// The server's storage: one SQLite file, one writer, a few readers.
//
//   Status s = store.Write([&](Database& db) { return InsertRun(db, run); });
//   Status s = store.Read([&](Database& db) { ... });
//
// Write runs its body in one transaction, one body at a time; nothing is stored
// unless the body returns OK. Read runs concurrently with writers, on its own
// snapshot (WAL). Keep it short, because an open reader prevents the WAL from
// shrinking. The row functions (run_rows.h, session_rows.h, chunk_rows.h,
// plan_rows.h) take the Database of either.
//
// Disk full: a failed Write changes nothing and sets `degraded` to a sentence.
// A Write that succeeds a few seconds later clears it (between large writes
// that fail, small ones may succeed). Reading still works.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/store/sqlite.h"

namespace reprise::server {

struct StoreOptions {
  std::string path;  // of the database file; the folder must exist
  // Largest file, in pages of 4 KiB; 0: no limit.
  int64_t max_pages = 0;
  // `degraded` is kept at least this long after the last failure.
  std::chrono::milliseconds degraded_for = std::chrono::seconds(5);
};

class Store {
 public:
  // Creates or migrates the file. FAILED_PRECONDITION: a newer version wrote
  // it; PERMISSION_DENIED: read-only; DATA_LOSS: not a database.
  static StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options);

  Status Write(const std::function<Status(Database&)>& body);
  Status Read(const std::function<Status(Database&)>& body);

  // Empty if all is well, else one sentence.
  std::string degraded() const;

  // Size of the file and its write-ahead log, in bytes.
  int64_t SizeBytes() const;

  // Moves the write-ahead log into the file and empties it.
  Status Checkpoint();

 private:
  Store(const StoreOptions& options, Database writer)
      : path_(options.path),
        degraded_for_(options.degraded_for),
        writer_(std::move(writer)) {}

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

// Unix time in ns.
int64_t RealtimeNs();

}  // namespace reprise::server
