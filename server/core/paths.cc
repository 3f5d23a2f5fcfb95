// SPDX-License-Identifier: Apache-2.0
#include "server/core/paths.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

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
        "longer "
        "than 107 bytes; name a shorter one");
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

}  // namespace reprise::server
