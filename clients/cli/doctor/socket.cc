// SPDX-License-Identifier: Apache-2.0
//
// Checks the daemon's socket as an agent would find it: its owner, who may use
// it, and which process listens.
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/str_cat.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/server/private_daemon.h"
#include "clients/cli/server/runtime_paths.h"

namespace reprise::cli {
namespace {

std::string UserName(uid_t uid) {
  const passwd* user = getpwuid(uid);
  return user != nullptr ? user->pw_name : StrCat("uid ", uid);
}

// Reports the lock of the daemon in this folder without trying to take it,
// because that could prevent a daemon from starting.
std::string LockState(const std::string& folder) {
  struct stat about {};
  if (stat((folder + "/reprised.lock").c_str(), &about) != 0) return "";
  const std::string inode = StrCat(":", about.st_ino, " ");
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    if (line.find(" FLOCK ") == line.npos || line.find(inode) == line.npos) {
      continue;
    }
    std::istringstream words(line.substr(line.find(" FLOCK ")));
    std::string pid;
    for (int word = 0; word < 4; ++word) words >> pid;
    return StrCat("; process ", pid, " holds its lock and starts or hangs");
  }
  return "; its lock is stale: no process holds it";
}

std::string Octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%03o", mode & 0777U);
  return text;
}

std::string GroupName(gid_t gid) {
  const group* found = getgrgid(gid);
  return found != nullptr ? found->gr_name : StrCat("gid ", gid);
}

bool IsMember(gid_t gid) {
  std::vector<gid_t> groups(
      static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<size_t>(std::max(count, 0)));
  return getegid() == gid ||
         std::find(groups.begin(), groups.end(), gid) != groups.end();
}

// Explains a denied connection: only the owner may connect, and the group if
// the mode allows it.
Check Denied(const std::string& path, const std::string& whose,
             const struct stat& about) {
  Check check{Health::kProblem, "socket", StrCat(whose, ": permission denied"),
              ""};
  const std::string name = GroupName(about.st_gid);
  if (!Environment("KUBERNETES_SERVICE_HOST").empty()) {
    check.advice = StrCat("give the pod one fsGroup (here ", about.st_gid,
                          "), so that both containers may use ", path);
  } else if ((about.st_mode & S_IWGRP) == 0) {
    check.advice = "run as " + UserName(about.st_uid) +
                   ", or use a daemon of your own (unset REPRISE_SOCKET)";
  } else if (IsMember(about.st_gid)) {
    check.advice = StrCat("you are of its group ", name,
                          ": its folder keeps you out, check its mode");
  } else {
    check.advice = StrCat("join its group ", name,
                          " and log in again, or run as its owner");
  }
  return check;
}

}  // namespace

Check CheckSocket(bool& listening) {
  const std::string path = AgentSocket();
  const std::string from =
      Environment("REPRISE_SOCKET").empty() ? "" : " (REPRISE_SOCKET)";
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) {
    const std::string folder = path.substr(0, path.rfind('/'));
    if (!from.empty() && access(folder.c_str(), W_OK | X_OK) != 0) {
      return {Health::kProblem, "socket",
              StrCat(path, from,
                     ": its folder cannot be used: ", std::strerror(errno)),
              "make the folder, or unset REPRISE_SOCKET"};
    }
    return {Health::kOk, "socket",
            StrCat("no daemon runs; agents will look at ", path, from),
            "`reprise run` and reprise.auto start a private one; `reprise "
            "serve` one that stays"};
  }
  const std::string whose = StrCat(path, from, ", mode ", Octal(about.st_mode),
                                   ", of ", UserName(about.st_uid));
  const Knock knock = KnockAt(path);
  const int error = knock.error;
  if (error == 0) {
    listening = true;
    if (knock.peer.pid == 0) {
      return {Health::kOk, "socket",
              StrCat(whose, ": a daemon listens in another process namespace"),
              "jobs are known by what their agents say of themselves: their "
              "pids are those of their own namespace"};
    }
    return {Health::kOk, "socket",
            StrCat(whose, ": a daemon listens, process ", knock.peer.pid,
                   " of ", UserName(knock.peer.uid)),
            ""};
  }
  if (error == ECONNREFUSED) {
    return {Health::kProblem, "socket",
            StrCat(whose, ": no process listens on it: a daemon left it behind",
                   LockState(path.substr(0, path.rfind('/')))),
            StrCat("start `reprise serve`, which takes it over, or remove it")};
  }
  if (error == EACCES) {
    return Denied(path, whose, about);
  }
  return {Health::kProblem, "socket", StrCat(whose, ": ", std::strerror(error)),
          "remove it, and start `reprise serve`"};
}

}  // namespace reprise::cli
