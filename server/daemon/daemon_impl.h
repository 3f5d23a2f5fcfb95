// SPDX-License-Identifier: Apache-2.0
//
// The components of a daemon and how they hang together. Only for daemon.cc,
// daemon_start.cc and daemon_status.cc.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/str_cat.h"
#include "server/collect/collector.h"
#include "server/core/paths.h"
#include "server/daemon/daemon.h"
#include "server/forward/uplink.h"
#include "server/ingest/committer.h"
#include "server/ingest/ingest_service.h"
#include "server/net/http.h"
#include "server/net/import_upload.h"
#include "server/net/listener.h"
#include "server/net/routes.h"
#include "server/net/tokens.h"
#include "server/service/calls/handlers.h"
#include "server/store/store.h"

namespace reprise::server {

// How commands on this machine find a running daemon: two files next to its
// agent socket, which AnnounceSelf writes.
//
//   server.json    addresses, process, version and folders
//   server.token   a copy of the token, for a command that finds the daemon by
//                  its socket, perhaps in a container that mounts the socket's
//                  folder but not the data folder
//
// In the data folder, `port` is where the private daemon listened last: it does
// so again if it can, so that links to its page stay.

// Returns whether a daemon says beside this socket that it listens on this
// address: "127.0.0.1:7070".
bool IsAnnounced(const std::string& agent_socket, const std::string& address);

// Returns the port that was kept in this data folder; 0: none.
uint16_t KeptPort(const std::string& data_dir);
// A port that cannot be kept is only another one the next time.
void KeepPort(const std::string& data_dir, uint16_t port);

// Removes both files, if they are there.
void RemoveAnnouncement(const std::string& agent_socket);

// The gRPC server, for sockets that the listener accepted and for in-process
// calls.
class GrpcServer {
 public:
  // Starts a server with these services and the health service. Services must
  // outlive it. Calls over a socket, including health checks, need a token;
  // in-process calls do not.
  static StatusOr<std::unique_ptr<GrpcServer>> Start(
      const std::vector<grpc::Service*>& services,
      const Authenticate& authenticate);
  ~GrpcServer();

  // Takes over a connected, non-blocking socket whose first bytes are the
  // HTTP/2 preface: one over loopback, or one end of a socket pair
  // (tls_front.h).
  void Adopt(int fd);
  void AdoptPaired(int fd);

  // Returns a channel to this server without a socket; the same limits apply.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Makes health checks answer NOT_SERVING from now on.
  void StopServing();

  // Stops the server. Calls in progress have `grace` to end before they are
  // cancelled.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  GrpcServer() = default;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> of_pairs_;
  std::unique_ptr<grpc::Server> server_;
};

class RunningDaemon final : public Daemon {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RunningDaemon(DaemonOptions options)
      : options_(std::move(options)) {}
  ~RunningDaemon() override { Stop(std::chrono::milliseconds(0)); }

  Status Start();
  void Stop(std::chrono::milliseconds patience) override;
  bool Tick() override;
  bool MayYield() override {
    return options_.private_daemon && collector_->Retire();
  }
  void Abandon() override {
    if (announced_) RemoveAnnouncement(options_.agent_socket);
  }

  std::string http_address() const override {
    return AddressOf(http_listener_ ? *http_listener_ : nullptr);
  }
  std::string grpc_address() const override {
    return AddressOf(grpc_listener_ ? *grpc_listener_ : nullptr);
  }

 private:
  static std::string AddressOf(const Listener* listener) {
    return listener != nullptr ? listener->address().Text() : "";
  }
  std::string TokenFile() const {
    return options_.token_file.empty() ? options_.data_dir + "/token"
                                       : options_.token_file;
  }

  // The address that a browser on this machine can open.
  std::string PageAddress() const {
    if (tls_ == nullptr) return "http://" + http_address();
    const Address at = (*http_listener_)->address();
    return StrCat("https://", tls_name_, ":", at.port);
  }

  // Starting: daemon_start.cc.
  // Calls `open`, and once more if the problem with the database could be
  // repaired.
  Status OpenAnyway(const std::string& path,
                    const std::function<Status()>& open);
  Status UseFlags();
  bool IsAnnouncedPort() const;
  bool IsAnyPort() const;
  // `asks`: a private daemon that has the folders is asked to make way.
  Status TakeLocks(bool asks);
  Status LearnSecret();
  Status BindPorts();
  Status StartServices();
  Status StartTls();
  Status StartCollector();
  Status StartUplink();

  // While it runs: daemon.cc.
  void Relay(const std::string& run_id, const std::string& session_id,
             const v1::Down& down);
  void OnSteps(const std::string& run_id,
               const std::vector<v1::StepReport>& steps);
  void ReturnMemory();
  Status LearnNewest();
  int64_t BelievedNow() const;

  // What it says of itself: daemon_status.cc.
  // Writes the files that announce it, and its addresses to the log.
  Status AnnounceSelf();
  void LogAddresses() const;
  void FillStatus(v1::ServerStatus& status) const;
  std::string NotReady() const;
  std::string MetricsText();

  const DaemonOptions options_;
  const int64_t started_ns_ = RealtimeNs();
  const Clock::time_point started_ = Clock::now();
  std::vector<LockFile> locks_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::optional<Listener*> http_listener_;
  std::optional<Listener*> grpc_listener_;

  std::optional<Tokens> tokens_;

  // In order of dependency; destroyed in reverse.
  RunHub hub_;
  std::unique_ptr<Store> store_;
  Metrics metrics_;
  std::unique_ptr<Planning> planning_;
  RunFollowers followers_;
  std::unique_ptr<RunWatcher> watcher_;
  std::unique_ptr<WorkerPool> short_work_;
  std::unique_ptr<WorkerPool> planners_;
  ByteShare sent_graphs_{options_.max_sent_graph_bytes};
  std::unique_ptr<Services> services_;
  MethodTable methods_{metrics_};
  std::unique_ptr<Committer> committer_;
  std::unique_ptr<IngestService> ingest_;
  std::unique_ptr<grpc::Service> grpc_service_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<Routes> routes_;
  std::unique_ptr<ImportUploads> imports_;
  std::unique_ptr<GraphPosts> graph_posts_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<TlsFront> tls_;
  std::string tls_name_;
  std::unique_ptr<Collector> collector_;
  std::shared_ptr<grpc::Channel> central_;
  std::unique_ptr<Uplink> uplink_;

  std::atomic<bool> stopping_{false};
  bool announced_ = false;
  Clock::time_point last_orphans_{};
  Clock::time_point next_retention_{};
  // When a private daemon last had a job, a parent or a request.
  Clock::time_point last_needed_ = started_;
  uint64_t asked_before_ = 0;
  Clock::time_point looked_{};  // how much freed memory malloc keeps
  // The newest run that was stored when this daemon began, and when that was.
  int64_t newest_ns_ = 0;
  int64_t booted_ns_ = 0;
};

}  // namespace reprise::server
