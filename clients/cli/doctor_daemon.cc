// SPDX-License-Identifier: Apache-2.0
//
// The daemon: its socket as an agent would find it, its server, its agents.
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/str_cat.h"
#include "base/units.h"
#include "clients/cli/doctor.h"
#include "clients/cli/runtime_paths.h"
#include "clients/cli/server_client.h"

namespace reprise::cli {
namespace {

// Connects as an agent does and leaves again; 0, or errno.
int Knock(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int error = connect(fd, reinterpret_cast<const sockaddr*>(&address),
                            sizeof address) == 0
                        ? 0
                        : errno;
  close(fd);
  return error;
}

std::string Octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%03o", mode & 0777U);
  return text;
}

std::string UserName(uid_t uid) {
  const passwd* user = getpwuid(uid);
  return user != nullptr ? user->pw_name : StrCat("uid ", uid);
}

// `listening` is set where a daemon answered.
Check Socket(bool& listening) {
  const std::string path = AgentSocket();
  const char* named = std::getenv("REPRISE_SOCKET");
  const std::string from =
      named != nullptr && *named != '\0' ? " (REPRISE_SOCKET)" : "";
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
  const int error = Knock(path);
  if (error == 0) {
    listening = true;
    return {Health::kOk, "socket", StrCat(whose, ": a daemon listens"), ""};
  }
  if (error == ECONNREFUSED) {
    return {Health::kProblem, "socket",
            StrCat(whose, ": nobody listens, a daemon left it behind"),
            StrCat("start `reprise serve`, which takes it over, or remove it")};
  }
  if (error == EACCES) {
    return {Health::kProblem, "socket", StrCat(whose, ": permission denied"),
            "join its group (reprise), or run as its owner"};
  }
  return {Health::kProblem, "socket", StrCat(whose, ": ", std::strerror(error)),
          "remove it, and start `reprise serve`"};
}

void AddStatus(const v1::ServerStatus& status, const Endpoint& endpoint,
               std::vector<Check>& checks) {
  Check server{Health::kOk, "server",
               StrCat("reprised ", status.version(), " at ", endpoint.url), ""};
  if (status.version() != REPRISE_VERSION) {
    server.health = Health::kWarning;
    server.found += ", this command is " REPRISE_VERSION;
    server.advice = "use both of one release";
  }
  checks.push_back(std::move(server));
  if (!status.degraded().empty()) {
    checks.push_back({Health::kProblem, "store", status.degraded(),
                      "make room, or start with another --data-dir"});
  } else {
    struct statvfs disk {};
    Check store{
        Health::kOk, "store",
        StrCat(FormatBytes(status.store_bytes()), " in ", status.data_dir(),
               ", spool ", FormatBytes(status.spool_bytes())),
        ""};
    if (statvfs(status.data_dir().c_str(), &disk) == 0) {
      const auto free_bytes =
          static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
      store.found += StrCat(", ", FormatBytes(free_bytes), " free");
      if (free_bytes < int64_t{1} << 30) {
        store.health = Health::kWarning;
        store.advice = "make room: below 1 GiB records may be lost";
      }
    }
    checks.push_back(std::move(store));
  }
  for (const v1::AgentStatus& agent : status.agents()) {
    if (!agent.connected()) continue;
    Check check{Health::kOk, "agent",
                StrCat("pid ", agent.pid(), ", run ", agent.run_id()), ""};
    for (const std::string& line : agent.capabilities()) {
      if (line.rfind("cupti_holder=", 0) == 0 && line.size() > 13) {
        check.health = Health::kWarning;
        check.found += ": CUPTI is held by " + line.substr(13);
        check.advice = "stop that tool; the next window tries again";
      }
    }
    checks.push_back(std::move(check));
  }
}

}  // namespace

std::vector<Check> CheckDaemon(const Globals& globals) {
  std::vector<Check> checks;
  bool listening = false;
  checks.push_back(Socket(listening));
  const bool asked =
      !globals.server.empty() || std::getenv("REPRISE_SERVER") != nullptr;
  const auto client = ServerClient::Connect(globals.server);
  if (!client.ok()) {
    const bool broken = listening || asked;
    checks.push_back(
        {broken ? Health::kProblem : Health::kOk, "server",
         broken ? client.status().message()
                : std::string("none runs here; files can be "
                              "planned without one"),
         broken ? "is it still starting? see `reprise status`" : ""});
    return checks;
  }
  const auto status = client->GetStatus();
  if (!status.ok()) {
    checks.push_back(
        {Health::kProblem, "server", status.status().message(), "restart it"});
    return checks;
  }
  AddStatus(*status, client->endpoint(), checks);
  return checks;
}

}  // namespace reprise::cli
