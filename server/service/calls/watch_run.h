// SPDX-License-Identifier: Apache-2.0
//
// Serves WatchRun to any number of clients on one thread.
//
// The thread sleeps until the hub reports a commit, then sends every watcher of
// a changed run what is new since its last event. A watcher whose last event
// has not been taken is skipped; later it gets everything since then in one
// event, so a slow client costs no memory. A burst of commits makes one event
// per kShortestPause.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "reprise/v1/query.pb.h"
#include "server/service/calls/method.h"
#include "server/service/runs/verdict.h"
#include "server/store/database.h"
#include "server/store/run_hub.h"
#include "server/store/store.h"

namespace reprise::server {

// Runs that are looked at, each followed once for all who watch it: its reports
// as they are stored, and the run with its verdict as it stands. What nobody
// watches is kept a while, so that a page that zooms reads nothing twice.

// One run. Not thread-safe by itself: RunFollowers hands it out under a lock.
class RunFollower {
 public:
  explicit RunFollower(std::string run_id) : run_id_(std::move(run_id)) {}

  // Reads what was stored since `version` (RunHub) was last seen.
  Status Update(Database& db, uint64_t version);

  // With verdict, standing, sessions and window.
  const v1::Run& run() const { return run_; }
  const StepLog& log() const { return reports_.log(); }
  // Rows of steps and checks that are read, for those who want what follows.
  int64_t last_step() const { return reports_.last_step(); }
  int64_t last_check() const { return reports_.last_check(); }

 private:
  const std::string run_id_;
  bool read_ = false;
  uint64_t version_ = 0;
  RunReports reports_;
  v1::Run run_;
};

class RunFollowers {
 public:
  // Calls `use` with the follower of a run, brought up to date, under its lock.
  // NOT_FOUND.
  Status With(Database& db, const std::string& run_id, uint64_t version,
              const std::function<Status(const RunFollower&)>& use);

 private:
  struct Entry {
    explicit Entry(std::string run_id)
        : id(run_id), follower(std::move(run_id)) {}
    const std::string id;
    std::mutex mutex;
    RunFollower follower;
  };

  static constexpr size_t kKept = 32;

  std::mutex mutex_;
  std::vector<std::shared_ptr<Entry>> entries_;  // the last used one last
};

class RunWatcher {
 public:
  RunWatcher(Store& store, RunHub& hub, RunFollowers& followers);
  ~RunWatcher();

  // Serves a WatchRun call until the run ends or the client disconnects. With
  // `buckets`, the steps so far come in as many at most.
  void Add(std::string run_text, uint32_t buckets, std::shared_ptr<Call> call);

  // Ends all calls with UNAVAILABLE.
  void Stop();

 private:
  struct Watch {
    std::string run_text;  // as requested; resolved at the first event
    uint32_t buckets = 0;
    std::shared_ptr<Call> call;
    std::string run_id;
    bool started = false;
    uint64_t seen_version = 0;
    std::string sent_plan_id;
    // Rows that were sent, or are in the buckets.
    int64_t last_step = 0;
    int64_t last_check = 0;
  };

  void Loop();
  // Returns true if the watch is over.
  bool Serve(Watch& watch);
  StatusOr<v1::RunEvent> NextEvent(Database& db, uint64_t version,
                                   Watch& watch);

  Store& store_;
  RunHub& hub_;
  RunFollowers& followers_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Watch>> added_;
  std::thread thread_;
};

}  // namespace reprise::server
