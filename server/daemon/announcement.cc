// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/announcement.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "server/core/log.h"
#include "server/core/paths.h"

namespace reprise::server {

namespace {

std::string ServerFile(const std::string& agent_socket) {
  return FolderOf(agent_socket) + "/server.json";
}

std::string TokenCopy(const std::string& agent_socket) {
  return FolderOf(agent_socket) + "/server.token";
}

void LogAddresses(const Announcement& daemon) {
  const std::string& http = daemon.http;
  const std::string& grpc = daemon.grpc;
  LogInfo("listening",
          http == grpc
              ? StrCat("listening on ", http)
              : StrCat("listening on ", grpc.empty() ? "nothing" : grpc,
                       " for gRPC and on ", http.empty() ? "nothing" : http,
                       " for HTTP"),
          {{"http", http},
           {"grpc", grpc},
           {"pid", int64_t{::getpid()}},
           {"version", daemon.version}});
  // The token is meant for the person at the terminal, not for readers of logs.
  if (!http.empty() && ::isatty(STDERR_FILENO) == 1) {
    LogInfo("page", StrCat("the page: ", daemon.url, "/?token=", daemon.token));
  } else if (!http.empty()) {
    LogInfo("page", "the page: `reprise status` prints its link");
  }
  LogInfo("ready",
          StrCat("agents connect to ", daemon.agent_socket, "; runs are in ",
                 daemon.place),
          {{"agent_socket", daemon.agent_socket},
           {"data_dir", daemon.data_dir},
           {"store", daemon.place}});
}

}  // namespace

Status Announce(const Announcement& daemon) {
  const std::string token_copy = TokenCopy(daemon.agent_socket);
  nlohmann::json json;
  json["listen"] = daemon.grpc.empty() ? daemon.http : daemon.grpc;
  json["url"] = daemon.url;
  if (!daemon.certificate.empty()) {
    // For commands on this machine: the only certificate to trust.
    json["certificate"] =
        std::filesystem::absolute(daemon.certificate).string();
  }
  json["pid"] = ::getpid();
  json["version"] = daemon.version;
  json["token_file"] = std::filesystem::absolute(token_copy).string();
  json["agent_socket"] = daemon.agent_socket;
  json["data_dir"] = daemon.data_dir;
  RETURN_IF_ERROR(WriteFileAtomically(token_copy, daemon.token + "\n"));
  RETURN_IF_ERROR(WriteFileAtomically(ServerFile(daemon.agent_socket),
                                      json.dump(2) + "\n"));
  LogAddresses(daemon);
  return OkStatus();
}

bool IsAnnounced(const std::string& agent_socket, const std::string& address) {
  std::ifstream file(ServerFile(agent_socket));
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return false;
  const auto text = [&json](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
  };
  return text("listen") == address || text("url").ends_with("//" + address);
}

uint16_t KeptPort(const std::string& data_dir) {
  std::ifstream file(data_dir + "/port");
  int64_t port = 0;
  // Those below are for services.
  return file >> port && port >= 1024 && port <= 65535
             ? static_cast<uint16_t>(port)
             : 0;
}

void KeepPort(const std::string& data_dir, uint16_t port) {
  if (port == KeptPort(data_dir)) return;
  (void)WriteFileAtomically(data_dir + "/port", StrCat(port, "\n"));
}

void RemoveAnnouncement(const std::string& agent_socket) {
  ::unlink(ServerFile(agent_socket).c_str());
  ::unlink(TokenCopy(agent_socket).c_str());
}

}  // namespace reprise::server
