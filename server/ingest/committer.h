// SPDX-License-Identifier: Apache-2.0
//
// The one thread that stores what arrives on all Ingest streams.
//
//   stream ─┐             ┌ one transaction for up to 64 items ┐
//   stream ─┼─▶ queue ──▶ │ hello defs chunk chunk lost bye ... │ ─▶ done(...)
//   stream ─┘             └─────────────────────────────────────┘
//
// Under load many items share a commit; when idle, each has its own, so nothing
// waits for a timer. One thread decides on every seq, in queue order, so a
// chunk is stored if and only if it is the next one of its (session, epoch),
// regardless of streams, duplicates and reconnects:
//
//   seq == committed + 1   stored                  seq <= committed   ignored
//   seq >  committed + 1   a hole: not stored; `expected` says which is due
//
// What a run's quota has no room for is counted instead of stored, and its seq
// committed, so that the sender goes on.
//
// If a shared commit fails, its items are tried one by one: on a full disk,
// what still fits is stored, and no item fails because of another.
//
// A chunk is committed together with its reports and its seq, so after a crash
// at any moment the store holds a complete prefix.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"
#include "server/core/metrics.h"
#include "server/store/chunk_rows.h"
#include "server/store/quota_rows.h"
#include "server/store/run_hub.h"
#include "server/store/store.h"

namespace reprise::server {

struct CheckedChunk {
  v1::Chunk chunk;
  v1::Columns columns;
};

struct CommitResult {
  Status status;
  // Every seq up to this one is committed.
  uint64_t committed = 0;
  // The item came after a hole, so it was not stored.
  bool hole = false;
  // The item was a chunk, or a session's Hello, that had not been stored before.
  bool stored = false;
};

struct CommitItem {
  Producer producer;
  std::variant<v1::Hello, v1::Defs, CheckedChunk, v1::Lost, v1::Bye, v1::Caps>
      what;
  // Called once, on the committer's thread, after the commit or its failure.
  std::function<void(const CommitResult&)> done = {};
};

// Called with step reports that were just committed, unless another daemon
// forwarded them, which has seen them itself.
using StepsObserver = std::function<void(
    const std::string& run_id, const std::vector<v1::StepReport>& steps)>;

class Committer {
 public:
  // `max_run_bytes` is the quota of each run (quota_rows.h); 0: none.
  Committer(Store& store, RunHub& hub, Metrics& metrics, StepsObserver on_steps,
            int64_t max_run_bytes = 0);
  ~Committer();

  // Queues an item.
  void Push(CommitItem item);

  // Commits what is queued and ends the thread. Later items fail with
  // UNAVAILABLE.
  void Stop();

 private:
  using Stream = std::pair<std::string, uint64_t>;  // session, epoch

  void Loop();
  void CommitBatch(std::span<const CommitItem> batch);
  void Count(const CheckedChunk& checked, const CommitResult& result);
  // Applies one item inside the transaction.
  Status Apply(Database& db, const CommitItem& item, CommitResult& result);
  Status Apply(Database& db, const Producer& producer, const v1::Hello& hello,
               CommitResult& result);
  Status Apply(Database& db, const Producer& producer, const v1::Defs& defs,
               CommitResult& result);
  Status Apply(Database& db, const Producer& producer,
               const CheckedChunk& checked, CommitResult& result);
  Status Apply(Database& db, const Producer& producer, const v1::Lost& lost,
               CommitResult& result);
  Status Apply(Database& db, const Producer& producer, const v1::Caps& caps,
               CommitResult& result);
  Status Apply(Database& db, const Producer& producer, const v1::Bye& bye,
               CommitResult& result);
  // Stores a chunk, or what of it the quota has room for.
  Status StoreChunk(Database& db, const Producer& producer,
                    const CheckedChunk& checked);
  Status CountRefused(Database& db, const Producer& producer,
                      const StoredRow& before, uint64_t records, int64_t bytes);
  StatusOr<uint64_t> CommittedOf(Database& db, const Producer& producer);

  Store& store_;
  RunHub& hub_;
  Metrics& metrics_;
  const StepsObserver on_steps_;
  const Quota quota_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<CommitItem> queue_;
  bool stopping_ = false;

  // Used only by the thread. `tentative_` holds what the current transaction
  // will make true.
  std::map<Stream, uint64_t> committed_;
  std::map<Stream, uint64_t> tentative_;
  std::thread thread_;
};

}  // namespace reprise::server
