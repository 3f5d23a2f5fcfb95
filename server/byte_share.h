// SPDX-License-Identifier: Apache-2.0
//
// Bytes that callers may have in this process's memory at once, all together:
// bodies that are still being sent cost memory before anybody has looked at
// them.
//
//   if (!share.Take(size)) return ResourceExhausted("...");
//   ...
//   share.Give(size);
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace reprise::server {

class ByteShare {
 public:
  explicit ByteShare(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // False, and nothing is taken: there is no room for so many.
  bool Take(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > most_bytes_ - taken_) return false;
    taken_ += bytes;
    highest_ = std::max(highest_, taken_);
    return true;
  }
  void Give(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    taken_ -= bytes;
  }

  // Once everything was given back: how much was taken at most since it was
  // last asked; else 0. What was freed then is worth returning to the system.
  uint64_t EmptiedFrom() {
    const std::lock_guard lock(mutex_);
    if (taken_ > 0) return 0;
    const uint64_t highest = highest_;
    highest_ = 0;
    return highest;
  }

 private:
  const uint64_t most_bytes_;
  std::mutex mutex_;
  uint64_t taken_ = 0;
  uint64_t highest_ = 0;
};

}  // namespace reprise::server
