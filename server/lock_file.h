// SPDX-License-Identifier: Apache-2.0
//
// One daemon per folder: an flock on `reprised.lock` in it, which the kernel
// releases however the process ends. The file stays; it holds the pid of the
// last holder, for the sentence that a second daemon prints.
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

  // `yields`: whoever wants the folder next may ask this process to end, with
  // SIGUSR1. Such a holder is asked, and waited for during a few seconds.
  // FAILED_PRECONDITION: another process holds it, with its pid.
  static StatusOr<LockFile> Take(const std::string& folder, bool yields);

 private:
  explicit LockFile(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace reprise::server
