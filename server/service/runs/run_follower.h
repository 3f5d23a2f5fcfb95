// SPDX-License-Identifier: Apache-2.0
//
// Runs that are looked at, each followed once for all who watch it: its reports
// as they are stored, and the run with its verdict as it stands. What nobody
// watches is kept a while, so that a page that zooms reads nothing twice.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "reprise/v1/query.pb.h"
#include "server/service/runs/verdict.h"
#include "server/store/database.h"

namespace reprise::server {

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

}  // namespace reprise::server
