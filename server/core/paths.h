// SPDX-License-Identifier: Apache-2.0
//
// The daemon's folders and files: the default path of its socket, and folders
// and files that only this user can access.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace reprise::server {

// Returns the socket path that profiler/include/reprise_sockets.h defines.
// INVALID_ARGUMENT: the path from the environment is too long.
StatusOr<std::string> DefaultAgentSocket();

// Creates the folder and missing parents with mode 0700, and checks that it is
// ours and writable. If others may write to an empty folder, removes that
// permission and logs it; one that holds files or is sticky, such as /tmp, is
// left as it is and refused. PERMISSION_DENIED.
Status EnsureOwnFolder(const std::string& folder);

// Removes the permissions of everyone but the owner, if the file exists: an
// earlier release may have created it with another mode.
void MakePrivate(const std::string& path);

// Returns the part before the last slash, or "." without one.
std::string FolderOf(const std::string& path);

// Writes a temporary file and renames it: readers see the old content or the
// new.
Status WriteFileAtomically(const std::string& path, const std::string& text);

// Ensures that each folder has one daemon: an flock on `reprised.lock` in it,
// which the kernel releases however the process ends. The file stays; it holds
// the pid of the last holder, for the error message of a second daemon, and
// whether that has ended properly.
class LockFile {
 public:
  LockFile() = default;
  ~LockFile();
  LockFile(LockFile&& other) noexcept = default;
  LockFile& operator=(LockFile&& other) = delete;

  // Locks the folder. `yields`: another process that wants the folder may ask
  // this one to exit, with SIGUSR1. If the current holder yields, it is asked
  // to, and waited for during a few seconds; not one on another machine or in
  // another container that shares the folder. FAILED_PRECONDITION, with the
  // holder's pid: another process holds it. Without `asks` a holder that yields
  // is left alone: ALREADY_EXISTS.
  static StatusOr<LockFile> Take(const std::string& folder, bool yields,
                                 bool asks = true);

  // Whether the last holder was killed, or the machine stopped under it.
  bool was_left() const { return was_left_; }

 private:
  explicit LockFile(int fd) : fd_(fd) {}
  Fd fd_;
  bool is_held_ = false;
  bool was_left_ = false;
};

}  // namespace reprise::server
