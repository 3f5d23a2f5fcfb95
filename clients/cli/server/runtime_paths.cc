// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/server/runtime_paths.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/str_cat.h"
#include "profiler/include/reprise_sockets.h"

namespace reprise::cli {
namespace {

// Returns the folder above the bin/ of this program; empty if unknown.
std::filesystem::path Root() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : self.parent_path().parent_path();
}

}  // namespace

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string AgentSocket() {
  if (Environment("REPRISE_SOCKET").empty() &&
      access(REPRISE_SERVICE_SOCKET, F_OK) == 0) {
    return REPRISE_SERVICE_SOCKET;
  }
  return PrivateSocket();
}

std::string PrivateSocket() {
  RepriseSockets sockets;
  RepriseFindSockets(nullptr, &sockets);
  if (sockets.own >= 0) return sockets.path[sockets.own];
  // Too long: connecting to it will report that.
  std::string socket = Environment("REPRISE_SOCKET");
  return !socket.empty() ? socket
                         : StrCat(Environment("TMPDIR"), "/reprise-", geteuid(),
                                  "/agent.sock");
}

std::string ServerFile() {
  const std::filesystem::path socket(AgentSocket());
  return (socket.parent_path() / "server.json").string();
}

std::string AgentLibrary() {
  if (std::string named = Environment("REPRISE_AGENT"); !named.empty()) {
    return named;
  }
  std::error_code error;
  const auto root = Root();
  if (root.empty()) return "";
  // A build has it in lib/, a Python package next to this program's bin/.
  for (const auto& folder : {root / "lib", root}) {
    const auto library = folder / "libreprise_agent.so";
    if (std::filesystem::is_regular_file(library, error)) {
      return library.string();
    }
  }
  return "";
}

std::string LaunchFolder() {
  if (std::string named = Environment("REPRISE_LAUNCH"); !named.empty()) {
    return named;
  }
  std::error_code error;
  const auto root = Root();
  if (root.empty()) return "";
  for (const auto& folder :
       {root.parent_path() / "clients/python/src/reprise/launch",
        root / "share/reprise/python/reprise/launch", root / "launch"}) {
    if (std::filesystem::exists(folder / "sitecustomize.py", error)) {
      return folder.string();
    }
  }
  return "";
}

}  // namespace reprise::cli
