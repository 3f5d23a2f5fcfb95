// SPDX-License-Identifier: Apache-2.0
//
// The one thread that stores what all Ingest streams bring.
//
//   stream ─┐             ┌ one transaction for up to 64 items ┐
//   stream ─┼─▶ queue ──▶ │ hello defs chunk chunk lost bye ... │ ─▶ done(...)
//   stream ─┘             └─────────────────────────────────────┘
//
// Under load many items share a commit, when idle each has its own: nothing
// waits for a timer. Because one thread decides on every seq, in the order of
// the queue, a chunk is stored exactly when it is the next one of its
// (session, epoch), whatever streams, duplicates and reconnects do:
//
//   seq == committed + 1   stored                  seq <= committed   ignored
//   seq >  committed + 1   a hole: not stored, `expected` says what is due
//
// When a shared commit fails, its items are tried one by one: a full disk keeps
// what still fits, and nobody fails for another's sake.
//
// A chunk is committed together with the reports it carries and with its seq,
// so a crash at any moment leaves a whole prefix.
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
#include "server/metrics.h"
#include "server/store/chunk_rows.h"
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
  // The item came after a hole and was not stored.
  bool hole = false;
  // The item was a chunk, and a new one.
  bool stored = false;
};

struct CommitItem {
  Producer producer;
  std::variant<v1::Hello, v1::Defs, CheckedChunk, v1::Lost, v1::Bye, v1::Caps>
      what;
  // Called once, after the commit or its failure, on the committer's thread.
  std::function<void(const CommitResult&)> done;
};

// Step reports that were just committed.
using StepsObserver = std::function<void(
    const std::string& run_id, const std::vector<v1::StepReport>& steps)>;

class Committer {
 public:
  Committer(Store& store, RunHub& hub, Metrics& metrics,
            StepsObserver on_steps);
  ~Committer();

  void Push(CommitItem item);

  // Commits what is queued and ends the thread; later items fail with
  // UNAVAILABLE.
  void Stop();

 private:
  using Stream = std::pair<std::string, uint64_t>;  // session, epoch

  void Loop();
  void CommitBatch(std::span<const CommitItem> batch);
  void Count(const CheckedChunk& checked, const CommitResult& result);
  // Applies one item inside the transaction.
  Status Apply(Database& db, const CommitItem& item, CommitResult& result);
  Status ApplyChunk(Database& db, const Producer& producer,
                    const CheckedChunk& checked, CommitResult& result);
  Status ApplyLost(Database& db, const Producer& producer, const v1::Lost& lost,
                   CommitResult& result);
  StatusOr<uint64_t> CommittedOf(Database& db, const Producer& producer);

  Store& store_;
  RunHub& hub_;
  Metrics& metrics_;
  const StepsObserver on_steps_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<CommitItem> queue_;
  bool stopping_ = false;

  // Only the thread touches these. `tentative_` is what the transaction in
  // progress would make true.
  std::map<Stream, uint64_t> committed_;
  std::map<Stream, uint64_t> tentative_;
  std::thread thread_;
};

}  // namespace reprise::server
