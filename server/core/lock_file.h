// SPDX-License-Identifier: Apache-2.0
//
// Ensures that each folder has one daemon: an flock on `reprised.lock` in it,
// which the kernel releases however the process ends. The file stays; it holds
// the pid of the last holder, for the error message of a second daemon, and
// whether that has ended properly.
#pragma once

#include <string>

#include "base/status.h"

namespace reprise::server {

class LockFile {
 public:
  LockFile() = default;
  ~LockFile();
  LockFile(LockFile&& other) noexcept;
  LockFile& operator=(LockFile&& other) noexcept;

  // Locks the folder. `yields`: another process that wants the folder may ask
  // this one to exit, with SIGUSR1. If the current holder yields, it is asked
  // to, and waited for during a few seconds. FAILED_PRECONDITION, with the
  // holder's pid: another process holds it. Without `asks` a holder that yields
  // is left alone: ALREADY_EXISTS.
  static StatusOr<LockFile> Take(const std::string& folder, bool yields,
                                 bool asks = true);

  // Whether the last holder was killed, or the machine stopped under it.
  bool was_left() const { return was_left_; }

 private:
  explicit LockFile(int fd) : fd_(fd) {}
  int fd_ = -1;
  bool is_held_ = false;
  bool was_left_ = false;
};

}  // namespace reprise::server
