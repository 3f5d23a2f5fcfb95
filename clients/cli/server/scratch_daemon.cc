// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "clients/cli/core/files.h"
#include "clients/cli/server/private_daemon.h"

namespace reprise::cli {
namespace {

namespace fs = std::filesystem;

nlohmann::json ServerFacts(const std::string& socket) {
  std::ifstream file(fs::path(socket).parent_path() / "server.json");
  std::ostringstream text;
  text << file.rdbuf();
  return nlohmann::json::parse(text.str(), nullptr, /*exceptions=*/false);
}

}  // namespace

StatusOr<ScratchDaemon> ScratchDaemon::Start() {
  ScratchDaemon scratch;
  ASSIGN_OR_RETURN(scratch.folder_, NewFolder("reprise-doctor"));
  ASSIGN_OR_RETURN(scratch.daemon_,
                   StartDaemon(scratch.folder_ + "/agent.sock",
                               {"--data-dir", scratch.folder_ + "/data"}));
  return scratch;
}

ScratchDaemon::ScratchDaemon(ScratchDaemon&& other) noexcept
    : folder_(std::exchange(other.folder_, {})),
      daemon_(std::exchange(other.daemon_, {})) {}

ScratchDaemon& ScratchDaemon::operator=(ScratchDaemon&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(daemon_, other.daemon_);
  return *this;
}

ScratchDaemon::~ScratchDaemon() {
  StopDaemon(daemon_);
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

std::string ScratchDaemon::server() const {
  const nlohmann::json facts = ServerFacts(daemon_.socket);
  return facts.is_object() && facts.contains("listen") &&
                 facts["listen"].is_string()
             ? facts["listen"].get<std::string>()
             : "";
}

std::string ScratchDaemon::token_file() const {
  return folder_ + "/server.token";
}

pid_t DaemonPid(const std::string& socket) {
  const nlohmann::json facts = ServerFacts(socket);
  return facts.is_object() && facts.contains("pid") &&
                 facts["pid"].is_number_integer()
             ? facts["pid"].get<pid_t>()
             : 0;
}

}  // namespace reprise::cli
