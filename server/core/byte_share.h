// SPDX-License-Identifier: Apache-2.0
//
// Limits the bytes that concurrent callers may hold in memory together: bodies
// that are still being received cost memory before anything has checked them.
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

  uint64_t most_bytes() const { return most_bytes_; }

  // Takes `bytes` of the share. Returns false, and takes nothing, if they do
  // not fit.
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

  // If everything has been given back, returns the highest total since the last
  // call, else 0. After a large one it is worth returning freed memory to the
  // system.
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
