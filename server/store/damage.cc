// SPDX-License-Identifier: Apache-2.0
#include "server/store/damage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

constexpr int64_t kMostCheckedBytes = 64 << 20;
constexpr off_t kRoomBytes = 1 << 20;

std::string RoomOf(const std::string& folder) { return folder + "/room"; }

bool Exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

}  // namespace

Status CheckWhole(Database& database, const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || info.st_size > kMostCheckedBytes) {
    return OkStatus();
  }
  ASSIGN_OR_RETURN(const auto row, database.First("PRAGMA quick_check(1)"));
  if (!row || row->Text(0) == "ok") return OkStatus();
  return {Code::kDataLoss, StrCat(path, ": ", std::string(row->Text(0)))};
}

StatusOr<std::string> SetAside(const std::string& path) {
  std::string aside = StrCat(path, ".damaged-", std::time(nullptr));
  for (int i = 2; Exists(aside); ++i) {
    aside = StrCat(path, ".damaged-", std::time(nullptr), "-", i);
  }
  for (const char* part : {"-wal", "-shm", ""}) {
    const std::string from = path + part;
    if (std::rename(from.c_str(), (aside + part).c_str()) != 0 &&
        errno != ENOENT) {
      return PermissionDenied(StrCat(from, ": is damaged and cannot be renamed",
                                     ": ", std::strerror(errno)));
    }
  }
  return aside;
}

void KeepRoom(const std::string& folder) {
  const std::string path = RoomOf(folder);
  if (Exists(path)) return;
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const bool made = ::posix_fallocate(fd, 0, kRoomBytes) == 0;
  ::close(fd);
  if (!made) ::unlink(path.c_str());
}

bool UseRoom(const std::string& folder) {
  return ::unlink(RoomOf(folder).c_str()) == 0;
}

}  // namespace reprise::server
