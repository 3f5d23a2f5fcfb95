// SPDX-License-Identifier: Apache-2.0
//
// Calls that can be asked to return the best result so far. A cancelled stream
// can no longer deliver anything, so FinishPlan names the call instead.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "base/status.h"

namespace reprise::server {

class RunningCalls {
 public:
  // Registers a call under its name for its lifetime. A call with an empty name
  // cannot be found.
  class Entry {
   public:
    Entry(RunningCalls& calls, const std::string& request_id);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    bool asked_to_finish() const { return asked_; }

   private:
    friend class RunningCalls;
    RunningCalls& calls_;
    std::multimap<std::string, Entry*>::iterator place_;
    std::atomic<bool> asked_{false};
  };

  // Asks every call with this name to finish. NOT_FOUND: there is none.
  Status Finish(const std::string& request_id);

 private:
  std::mutex mutex_;
  std::multimap<std::string, Entry*> calls_;
};

// INVALID_ARGUMENT: longer than 64 characters.
Status CheckRequestId(const std::string& request_id);

}  // namespace reprise::server
