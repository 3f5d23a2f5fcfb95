// SPDX-License-Identifier: Apache-2.0
//
// Tells watchers that a run changed. A change increments a number and queues
// nothing, so a slow watcher sees the newest state and costs no memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace reprise::server {

class RunHub {
 public:
  // Something about the run was committed: wakes the waiters.
  void Notify(std::string_view run_id) {
    Count([&] { ++versions_[std::string(run_id)]; });
  }

  // Any run may have changed.
  void NotifyAll() {
    Count([this] { ++changes_of_all_; });
  }

  // Returns how often the run has changed since the daemon started.
  uint64_t VersionOf(const std::string& run_id) const {
    const std::lock_guard lock(mutex_);
    const auto found = versions_.find(run_id);
    return changes_of_all_ + (found == versions_.end() ? 0 : found->second);
  }

  uint64_t total() const {
    const std::lock_guard lock(mutex_);
    return total_;
  }

  // Wakes waiters without a change.
  void Wake() {
    Count([] {});
  }

  // Returns when `total` differs from `seen`, or after `timeout`.
  template <typename Duration>
  void Wait(uint64_t seen, Duration timeout) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return total_ != seen; });
  }

 private:
  template <typename Change>
  void Count(Change change) {
    {
      const std::lock_guard lock(mutex_);
      change();
      ++total_;
    }
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::string, uint64_t> versions_;
  uint64_t changes_of_all_ = 0;
  uint64_t total_ = 0;
};

}  // namespace reprise::server
