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
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
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

// A run that is looked at, followed once for all who watch it: its reports as
// they are stored, and the run with verdict, standing, sessions and window.
struct FollowedRun {
  explicit FollowedRun(std::string run_id) : id(std::move(run_id)) {}

  const std::string id;
  std::mutex mutex;                 // of all below
  std::optional<uint64_t> version;  // of RunHub, when it was last read
  RunReports reports;
  v1::Run run;
};

// What nobody watches is kept a while, so that a page that zooms reads nothing
// twice.
class RunFollowers {
 public:
  // Calls `use` with a run, brought up to date, under its lock. NOT_FOUND.
  Status With(Database& db, const std::string& run_id, uint64_t version,
              const std::function<Status(const FollowedRun&)>& use);

 private:
  static constexpr size_t kKept = 32;

  std::mutex mutex_;
  std::vector<std::shared_ptr<FollowedRun>> runs_;  // the last used one last
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
