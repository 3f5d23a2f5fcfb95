// SPDX-License-Identifier: Apache-2.0
#include "server/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/str_cat.h"

namespace reprise::server {

LockFile::~LockFile() {
  if (fd_ >= 0) ::close(fd_);
}

LockFile::LockFile(LockFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

LockFile& LockFile::operator=(LockFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

StatusOr<LockFile> LockFile::Take(const std::string& folder) {
  const std::string path = folder + "/reprised.lock";
  const int fd =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return PermissionDenied(StrCat(path,
                                   ": cannot open: ", std::strerror(errno),
                                   "; choose another folder"));
  }
  LockFile lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return PermissionDenied(
          StrCat(path, ": cannot lock: ", std::strerror(errno)));
    }
    char text[32] = {};
    const ssize_t n = ::pread(fd, text, sizeof(text) - 1, 0);
    std::string pid(text, n > 0 ? static_cast<size_t>(n) : 0);
    while (!pid.empty() && pid.back() == '\n') pid.pop_back();
    return FailedPrecondition(
        StrCat(folder, ": another reprised", pid.empty() ? "" : " (pid ", pid,
               pid.empty() ? "" : ")",
               " uses this folder; stop it or choose other folders with "
               "--data-dir and --agent-socket"));
  }
  const std::string pid = StrCat(::getpid(), "\n");
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, pid.data(), pid.size(), 0) !=
                                     static_cast<ssize_t>(pid.size())) {
    return ResourceExhausted(
        StrCat(path, ": cannot write: ", std::strerror(errno)));
  }
  return lock;
}

}  // namespace reprise::server
