// SPDX-License-Identifier: Apache-2.0
//
// The components of a daemon and how they hang together. Only for daemon.cc,
// daemon_start.cc and daemon_status.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "server/collect/collector.h"
#include "server/core/lock_file.h"
#include "server/daemon/announcement.h"
#include "server/daemon/daemon.h"
#include "server/daemon/grpc_server.h"
#include "server/forward/uplink.h"
#include "server/ingest/committer.h"
#include "server/ingest/ingest_service.h"
#include "server/net/http.h"
#include "server/net/import_upload.h"
#include "server/net/listener.h"
#include "server/net/routes.h"
#include "server/service/calls/audit.h"
#include "server/service/calls/handlers.h"
#include "server/store/store.h"

namespace reprise::server {

class Daemon::Impl {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Impl(DaemonOptions options) : options_(std::move(options)) {}
  ~Impl() { Stop(std::chrono::milliseconds(0)); }

  Status Start();
  void Stop(std::chrono::milliseconds patience);
  bool Tick();
  bool MayYield() { return options_.private_daemon && collector_->Retire(); }
  void Abandon() {
    if (announced_) RemoveAnnouncement(options_.agent_socket);
  }

  std::string http_address() const {
    return AddressOf(http_listener_ ? *http_listener_ : nullptr);
  }
  std::string grpc_address() const {
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
  Status AnnounceSelf();

  // While it runs: daemon.cc.
  void Relay(const std::string& run_id, const std::string& session_id,
             const v1::Down& down);
  void OnSteps(const std::string& run_id,
               const std::vector<v1::StepReport>& steps);
  void ReturnMemory();
  Status LearnNewest();
  int64_t BelievedNow() const;

  // What it says of itself: daemon_status.cc.
  void FillStatus(v1::ServerStatus& status) const;
  std::string NotReady() const;
  std::string MetricsText() const;

  const DaemonOptions options_;
  const int64_t started_ns_ = RealtimeNs();
  const Clock::time_point started_ = Clock::now();
  std::vector<LockFile> locks_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::optional<Listener*> http_listener_;
  std::optional<Listener*> grpc_listener_;

  std::optional<Secret> secret_;

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
  std::unique_ptr<Audit> audit_;
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
