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
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "reprise/v1/query.pb.h"
#include "server/service/calls/method.h"
#include "server/service/runs/run_follower.h"
#include "server/store/run_hub.h"
#include "server/store/store.h"

namespace reprise::server {

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
