// SPDX-License-Identifier: Apache-2.0
//
// Replaces a plan of a run once, although two may ask for it: the job itself,
// and the report of the step that peaked above the plan's budget.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "base/status.h"

namespace reprise::server {

class Replacements {
 public:
  struct Result {
    Status status;           // OK: plan_id was made
    std::string plan_id;     // of the new plan
    int64_t more_bytes = 0;  // held back in addition to what the old plan did
  };

  // Returns what replaces `plan_id` in a run. Calls `make`, which returns the
  // id of the new plan, if that was not done before; waits while another
  // thread does it. A refusal (FAILED_PRECONDITION) stands for every later
  // call that asks for as much or more; any other error is forgotten.
  Result Once(const std::string& run_id, const std::string& plan_id,
              int64_t more_bytes,
              const std::function<StatusOr<std::string>()>& make);

 private:
  struct Entry {
    std::string run_id;
    std::string plan_id;
    bool is_making = true;
    Result result;
  };
  using Entries = std::deque<Entry>;

  // Both require mutex_.
  Entries::iterator Find(const std::string& run_id, const std::string& plan_id);
  void DropOldest();

  std::mutex mutex_;
  std::condition_variable made_;
  Entries entries_;  // oldest first
};

}  // namespace reprise::server
