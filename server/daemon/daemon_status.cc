// SPDX-License-Identifier: Apache-2.0
//
// What a daemon says of itself: status, readiness and metrics.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"
#include "server/core/build_info.h"
#include "server/core/log.h"
#include "server/core/paths.h"
#include "server/daemon/daemon_impl.h"
#include "server/ingest/chunk_check.h"

namespace reprise::server {
namespace {

// Returns the size of a file; 0 if it does not exist.
int64_t FileBytes(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(bytes);
}

std::string ServerFile(const std::string& agent_socket) {
  return FolderOf(agent_socket) + "/server.json";
}

std::string TokenCopy(const std::string& agent_socket) {
  return FolderOf(agent_socket) + "/server.token";
}

}  // namespace

void RunningDaemon::FillStatus(v1::ServerStatus& status) const {
  status.set_version(kVersion);
  status.set_revision(kRevision);
  status.set_started_ns(started_ns_);
  status.set_listen(http_address().empty() ? grpc_address() : http_address());
  status.set_agent_socket(options_.agent_socket);
  status.set_data_dir(options_.data_dir);
  status.set_wal_bytes(FileBytes(options_.data_dir + "/reprise.db-wal") +
                       FileBytes(options_.data_dir + "/spool.db-wal"));
  status.set_now_ns(RealtimeNs());
  status.set_ring_layout(REPRISE_RING_LAYOUT);
  status.set_proto_version(kProtoVersion);
  if (uplink_ != nullptr) uplink_->FillStatus(*status.mutable_forward());
  if (collector_ == nullptr) return;
  status.set_spool_bytes(collector_->spool_bytes());
  if (status.degraded().empty()) status.set_degraded(collector_->degraded());
  for (const AgentSnapshot& agent : collector_->Agents()) {
    v1::AgentStatus& to = *status.add_agents();
    to.set_session_id(agent.session_id);
    to.set_run_id(agent.run_id);
    to.set_pid(agent.pid);
    to.set_connected(agent.connected);
    for (const std::string& line : agent.capabilities) {
      to.add_capabilities(line);
    }
  }
}

std::string RunningDaemon::NotReady() const {
  if (stopping_) return "shutting down";
  // An open file still works after its name is removed, but nobody would find
  // the records or the daemon.
  for (const std::string& path :
       {options_.agent_socket, options_.data_dir + "/reprise.db"}) {
    if (store_->shared() && path != options_.agent_socket) continue;
    if (::access(path.c_str(), F_OK) != 0) {
      return StrCat(path, " was removed; restart the daemon");
    }
  }
  if (std::string why = store_->degraded(); !why.empty()) return why;
  return collector_ != nullptr ? collector_->degraded() : "starting";
}

std::string RunningDaemon::MetricsText() {
  metrics_.ReadProcess();
  const auto read = [this](const std::string& name, const std::string& help,
                           auto value) {
    metrics_.Read(name, help, static_cast<double>(value));
  };
  read("reprise_store_size_bytes", "Bytes of the database and its log.",
       store_->SizeBytes());
  std::error_code unknown;
  const auto disk = std::filesystem::space(options_.data_dir, unknown);
  if (!unknown) {
    read("reprise_data_free_bytes",
         "Bytes that are free where the daemon keeps its data.",
         disk.available);
  }
  if (uplink_ != nullptr) {
    v1::ForwardStatus forward;
    uplink_->FillStatus(forward);
    read("reprise_forward_due_chunks",
         "Chunks that the central daemon has not acknowledged.",
         forward.chunks());
    read("reprise_forward_up",
         "Whether the central daemon takes what is stored here.",
         forward.trouble().empty());
  }
  read("reprise_indexed_steps_bytes",
       "Memory of traced steps that pages asked for lately.",
       services_->steps.held_bytes());
  if (collector_ != nullptr) {
    const CollectorStats stats = collector_->stats();
    read("reprise_agent_sessions", "Agents that are connected.",
         collector_->ConnectedAgents());
    read("reprise_ring_records_total", "Records taken from agents' rings.",
         stats.records);
    read("reprise_spool_bytes", "Bytes of the collector's spool.",
         collector_->spool_bytes());
    read("reprise_collector_chunks_acked_total",
         "Chunks the server acknowledged.", stats.chunks_acked);
  }
  return metrics_.Text();
}

Status RunningDaemon::AnnounceSelf() {
  announced_ = true;
  const std::string http = http_address();
  const std::string grpc = grpc_address();
  if (IsAnyPort()) {
    KeepPort(options_.data_dir, (*http_listener_)->address().port);
  }
  const std::string token_copy = TokenCopy(options_.agent_socket);
  nlohmann::json json;
  json["listen"] = grpc.empty() ? http : grpc;
  json["url"] = http.empty() ? "" : PageAddress();
  if (tls_ != nullptr) {
    // For commands on this machine: the only certificate to trust.
    json["certificate"] =
        std::filesystem::absolute(options_.tls.certificate).string();
  }
  json["pid"] = ::getpid();
  json["version"] = std::string(kVersion);
  json["token_file"] = std::filesystem::absolute(token_copy).string();
  json["agent_socket"] = options_.agent_socket;
  json["data_dir"] = options_.data_dir;
  RETURN_IF_ERROR(WriteFileAtomically(token_copy, tokens_->own() + "\n"));
  RETURN_IF_ERROR(WriteFileAtomically(ServerFile(options_.agent_socket),
                                      json.dump(2) + "\n"));
  LogAddresses();
  return OkStatus();
}

void RunningDaemon::LogAddresses() const {
  const std::string http = http_address();
  const std::string grpc = grpc_address();
  LogInfo("listening",
          http == grpc
              ? StrCat("listening on ", http)
              : StrCat("listening on ", grpc.empty() ? "nothing" : grpc,
                       " for gRPC and on ", http.empty() ? "nothing" : http,
                       " for HTTP"),
          {{"http", http},
           {"grpc", grpc},
           {"pid", int64_t{::getpid()}},
           {"version", kVersion}});
  // The token is meant for the person at the terminal, not for readers of logs.
  if (!http.empty() && ::isatty(STDERR_FILENO) == 1) {
    LogInfo("page",
            StrCat("the page: ", PageAddress(), "/?token=", tokens_->own()));
  } else if (!http.empty()) {
    LogInfo("page", "the page: `reprise status` prints its link");
  }
  LogInfo("ready",
          StrCat("agents connect to ", options_.agent_socket, "; runs are in ",
                 store_->place()),
          {{"agent_socket", options_.agent_socket},
           {"data_dir", options_.data_dir},
           {"store", store_->place()}});
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
