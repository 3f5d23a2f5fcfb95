// SPDX-License-Identifier: Apache-2.0
#include "server/core/paths.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "base/crc32c.h"
#include "base/str_cat.h"
#include "profiler/include/reprise_sockets.h"
#include "server/core/log.h"

namespace reprise::server {
namespace {

Status Denied(const std::string& folder, const char* what) {
  return PermissionDenied(StrCat(folder, ": ", what, ": ", std::strerror(errno),
                                 "; choose another folder"));
}

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

// Whoever can write to the folder could put a socket or a token there. A folder
// that others use, such as /tmp, must stay open to them: only an empty one that
// is not sticky is closed.
Status CloseToOthers(const std::string& folder, mode_t mode) {
  std::error_code error;
  const bool is_shared = (mode & S_ISVTX) != 0;
  if (is_shared || !std::filesystem::is_empty(folder, error) || error) {
    char octal[8];
    std::snprintf(octal, sizeof octal, "%o", static_cast<unsigned>(mode));
    return PermissionDenied(StrCat(
        folder, ": others may write to this folder (mode ", octal,
        "); name a folder of your own",
        is_shared ? StrCat(", such as ", folder, "/reprise-", ::geteuid())
                  : StrCat(", or run `chmod go-w ", folder, "`")));
  }
  if (::chmod(folder.c_str(), mode & ~kOthersWrite) != 0) {
    return Denied(folder, "others may write to it, and that cannot be changed");
  }
  LogWarning(
      "folder_closed",
      StrCat(folder, ": others could write to this folder; now they cannot"));
  return OkStatus();
}

}  // namespace

StatusOr<std::string> DefaultAgentSocket() {
  RepriseSockets sockets;
  if (RepriseFindSockets(nullptr, &sockets) != nullptr || sockets.own < 0) {
    return InvalidArgument(
        "--agent-socket: the path that REPRISE_SOCKET or TMPDIR gives is "
        "longer than 107 bytes; name a shorter one");
  }
  return std::string(sockets.path[sockets.own]);
}

Status EnsureOwnFolder(const std::string& folder) {
  const std::filesystem::path path(folder);
  std::error_code error;
  if (path.has_parent_path()) {
    std::filesystem::create_directories(path.parent_path(), error);
  }
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Denied(folder, "cannot make the folder");
  }
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) {
    return Denied(folder, "cannot look at the folder");
  }
  if (!S_ISDIR(info.st_mode)) {
    return PermissionDenied(
        StrCat(folder, ": is not a folder; choose another one"));
  }
  if (info.st_uid != ::geteuid()) {
    return PermissionDenied(StrCat(folder, ": belongs to user ", info.st_uid,
                                   ", not to user ", ::geteuid(),
                                   "; choose another folder"));
  }
  if ((info.st_mode & kOthersWrite) != 0) {
    RETURN_IF_ERROR(CloseToOthers(folder, info.st_mode & 07777));
  }
  // For root, access() also succeeds on a read-only file system, so create a
  // file.
  const std::string probe = folder + "/.reprised-probe";
  const int fd =
      ::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Denied(folder, "the folder is not writable");
  ::close(fd);
  ::unlink(probe.c_str());
  return OkStatus();
}

void MakePrivate(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return;
  (void)::chmod(path.c_str(), info.st_mode & S_IRWXU);
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status WriteFileAtomically(const std::string& path, const std::string& text) {
  const std::string temporary = StrCat(path, ".", ::getpid(), ".tmp");
  const int fd =
      ::open(temporary.c_str(),
             O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Denied(path, "cannot write");
  const bool written = ::write(fd, text.data(), text.size()) ==
                       static_cast<ssize_t>(text.size());
  ::close(fd);
  if (!written || ::rename(temporary.c_str(), path.c_str()) != 0) {
    ::unlink(temporary.c_str());
    return Denied(path, "cannot write");
  }
  return OkStatus();
}

namespace {

constexpr auto kYieldTimeout = std::chrono::seconds(3);
constexpr auto kYieldPoll = std::chrono::milliseconds(20);
constexpr std::string_view kYields = " yields ";
constexpr std::string_view kEnded = " ended";
constexpr size_t kTextBytes = 32;

// Where a pid means the same process as here, in eight digits: this boot of
// this machine, and this namespace of pids. A folder may be mounted elsewhere,
// too, where a signal would hit any process that has the holder's pid.
const std::string& Here() {
  static const std::string here = [] {
    std::string boot, space(64, '\0');
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    (void)::readlink("/proc/self/ns/pid", space.data(), space.size());
    char text[9];
    std::snprintf(text, sizeof(text), "%08x", Crc32c(boot + space));
    return std::string(text);
  }();
  return here;
}

// Reads the holder from the file: "1234", "1234 yields HERE", or "1234 ended"
// once that has ended properly; empty where the first holder has not written it
// yet.
std::string Holder(int fd) {
  char text[kTextBytes] = {};
  const ssize_t n = ::pread(fd, text, sizeof(text), 0);
  std::string holder(text, n > 0 ? static_cast<size_t>(n) : 0);
  while (holder.ends_with('\n') || holder.ends_with(' ')) holder.pop_back();
  return holder;
}

// Writes the holder in one call and always in as many bytes: a process that
// reads the file meanwhile finds the old holder or the new one, never none.
bool WriteHolder(int fd, std::string_view how) {
  std::string text = StrCat(::getpid(), how);
  text.resize(kTextBytes - 1, ' ');
  text += '\n';
  return ::pwrite(fd, text.data(), text.size(), 0) ==
             static_cast<ssize_t>(text.size()) &&
         ::ftruncate(fd, kTextBytes) == 0;
}

// Takes the lock, waiting for a holder that yields or that has not written
// yet whether it does. Returns 0, or -1 with errno, like flock; EBUSY: the
// holder yields, and `asks` is false.
int Lock(int fd, bool asks) {
  const auto deadline = std::chrono::steady_clock::now() + kYieldTimeout;
  pid_t asked = 0;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return -1;
    const std::string holder = Holder(fd);
    const auto pid = static_cast<pid_t>(std::atol(holder.c_str()));
    const bool yields = holder.ends_with(StrCat(kYields, Here())) && pid > 1;
    const bool is_there = !holder.empty() && !holder.ends_with(kEnded);
    if ((!yields && is_there) || std::chrono::steady_clock::now() > deadline) {
      errno = EWOULDBLOCK;
      return -1;
    }
    if (yields && !asks) {
      errno = EBUSY;
      return -1;
    }
    if (yields && asked != pid) ::kill(asked = pid, SIGUSR1);
    std::this_thread::sleep_for(kYieldPoll);
  }
  return 0;
}

}  // namespace

LockFile::~LockFile() {
  if (fd_.valid() && is_held_) (void)WriteHolder(fd_.get(), kEnded);
}

StatusOr<LockFile> LockFile::Take(const std::string& folder, bool yields,
                                  bool asks) {
  const std::string path = folder + "/reprised.lock";
  const int fd =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return PermissionDenied(StrCat(path,
                                   ": cannot open: ", std::strerror(errno),
                                   "; choose another folder"));
  }
  LockFile lock(fd);
  if (Lock(fd, asks) != 0) {
    if (errno == EBUSY) {
      return AlreadyExists(StrCat(folder, ": a private daemon uses it"));
    }
    if (errno != EWOULDBLOCK) {
      return PermissionDenied(
          StrCat(path, ": cannot lock: ", std::strerror(errno)));
    }
    const std::string holder = Holder(fd);
    const bool is_elsewhere =
        holder.find(kYields) != std::string::npos && !holder.ends_with(Here());
    const std::string pid = holder.substr(0, holder.find(' '));
    return FailedPrecondition(
        StrCat(folder, ": another reprised", pid.empty() ? "" : " (pid ", pid,
               is_elsewhere ? " of another machine or container" : "",
               pid.empty() ? "" : ")",
               " uses this folder; stop it or choose other folders with "
               "--data-dir and --agent-socket"));
  }
  lock.is_held_ = true;
  const std::string last = Holder(fd);
  lock.was_left_ = !last.empty() && !last.ends_with(kEnded);
  if (!WriteHolder(fd, yields ? StrCat(kYields, Here()) : "")) {
    return ResourceExhausted(
        StrCat(path, ": cannot write: ", std::strerror(errno)));
  }
  return lock;
}

}  // namespace reprise::server
