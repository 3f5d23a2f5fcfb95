// SPDX-License-Identifier: Apache-2.0
#include "server/daemon.h"

#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"
#include "server/collect/collector.h"
#include "server/forward/uplink.h"
#include "server/grpc_server.h"
#include "server/ingest/chunk_check.h"
#include "server/ingest/committer.h"
#include "server/ingest/ingest_service.h"
#include "server/lock_file.h"
#include "server/log.h"
#include "server/net/http.h"
#include "server/net/import_upload.h"
#include "server/net/listener.h"
#include "server/net/peer.h"
#include "server/net/routes.h"
#include "server/orphans.h"
#include "server/paths.h"
#include "server/service/admin.h"
#include "server/service/audit.h"
#include "server/service/grpc_services.h"
#include "server/service/handlers.h"
#include "server/store/damage.h"
#include "server/store/plan_rows.h"
#include "server/store/store.h"

namespace reprise::server {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr int kShortThreads = 3;
constexpr size_t kMaxShortWaiting = 1024;
constexpr int kPlanThreads = 2;
constexpr int kPromptPlanThreads = 1;
constexpr size_t kMaxPlansWaiting = 64;
constexpr auto kOrphanPause = seconds(5);
constexpr auto kRetentionPause = seconds(60);
constexpr auto kCallGrace = seconds(2);

std::string VersionText() { return REPRISE_VERSION; }

// Returns the size of a file; 0 if it does not exist.
int64_t FileBytes(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(bytes);
}

}  // namespace

// ---- Impl ----

class Daemon::Impl {
 public:
  explicit Impl(DaemonOptions options) : options_(std::move(options)) {}
  ~Impl() { Stop(milliseconds(0)); }

  Status Start();
  void Stop(milliseconds patience);
  bool Tick();
  bool MayYield() { return options_.private_daemon && collector_->Retire(); }
  void Abandon() {
    if (!announced_) return;
    ::unlink(ServerFile().c_str());
    ::unlink(TokenCopy().c_str());
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
  std::string ServerFile() const {
    return FolderOf(options_.agent_socket) + "/server.json";
  }
  // A copy of the token for commands that find the daemon by its socket,
  // perhaps in a container that mounts the socket's folder but not the data
  // folder.
  std::string TokenCopy() const {
    return FolderOf(options_.agent_socket) + "/server.token";
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

  // Calls `open`, and once more if the problem with the database could be
  // repaired.
  Status OpenAnyway(const std::string& path,
                    const std::function<Status()>& open);
  Status TakeLocks();
  Status LearnSecret();
  Status BindPorts();
  Status StartServices();
  Status StartTls();
  Status StartCollector();
  Status StartUplink();
  void Relay(const std::string& run_id, const std::string& session_id,
             const v1::Down& down);
  Status Announce();
  void OnSteps(const std::string& run_id,
               const std::vector<v1::StepReport>& steps);
  void FillStatus(v1::ServerStatus& status) const;
  std::string NotReady() const;
  void ReturnMemory();
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
  std::vector<std::unique_ptr<grpc::Service>> grpc_services_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<Routes> routes_;
  std::unique_ptr<ImportUploads> imports_;
  std::unique_ptr<GraphPosts> graph_posts_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<TlsFront> tls_;
  std::string tls_name_;
  std::unique_ptr<Collector> collector_;
  std::unique_ptr<Uplink> uplink_;

  std::atomic<bool> stopping_{false};
  bool announced_ = false;
  Clock::time_point last_orphans_{};
  Clock::time_point next_retention_{};
  // When a private daemon last had a job, a parent or a request.
  Clock::time_point last_needed_ = started_;
  uint64_t asked_before_ = 0;
};

Status Daemon::Impl::Start() {
  RETURN_IF_ERROR(TakeLocks());
  // Left over from a daemon that was killed; it would be mistaken for ours.
  ::unlink(ServerFile().c_str());
  ::unlink(TokenCopy().c_str());
  RETURN_IF_ERROR(LearnSecret());
  RETURN_IF_ERROR(BindPorts());
  const std::string database = options_.data_dir + "/reprise.db";
  RETURN_IF_ERROR(OpenAnyway(database, [&]() -> Status {
    ASSIGN_OR_RETURN(store_,
                     Store::Open({.path = database,
                                  .url = options_.store_url,
                                  .max_pages = options_.max_store_pages}));
    return OkStatus();
  }));
  store_->Watch([this](const std::string& run_id) {
    run_id.empty() ? hub_.NotifyAll() : hub_.Notify(run_id);
  });
  RETURN_IF_ERROR(StartServices());
  RETURN_IF_ERROR(StartTls());
  RETURN_IF_ERROR(StartUplink());
  RETURN_IF_ERROR(StartCollector());
  for (const std::unique_ptr<Listener>& listener : listeners_) {
    if (tls_ != nullptr) {
      listener->Start({}, [this](int fd) { tls_->Adopt(fd); });
    } else {
      listener->Start([this](int fd) { grpc_->Adopt(fd); },
                      [this](int fd) { http_->Adopt(fd); });
    }
  }
  KeepRoom(options_.data_dir);
  return Announce();
}

// A daemon that fails to start would leave every job without a plan.
Status Daemon::Impl::OpenAnyway(const std::string& path,
                                const std::function<Status()>& open) {
  Status opened = open();
  if (opened.code() == Code::kResourceExhausted && UseRoom(options_.data_dir)) {
    LogWarning("disk_full",
               StrCat(opened.message(),
                      "; starts on the room that was kept for this: what is "
                      "stored can be read"));
    opened = open();
  }
  if (opened.code() != Code::kDataLoss || !options_.store_url.empty()) {
    return opened;
  }
  ASSIGN_OR_RETURN(const std::string aside, SetAside(path));
  LogError("database_damaged",
           StrCat(opened.message(), "; the damaged file is kept as ", aside,
                  " and a new one is begun"));
  return open();
}

Status Daemon::Impl::TakeLocks() {
  const std::string runtime_dir = FolderOf(options_.agent_socket);
  RETURN_IF_ERROR(EnsureOwnFolder(options_.data_dir));
  RETURN_IF_ERROR(EnsureOwnFolder(runtime_dir));
  for (const char* name : {"reprise.db", "spool.db"}) {
    for (const char* part : {"", "-wal", "-shm"}) {
      MakePrivate(StrCat(options_.data_dir, "/", name, part));
    }
  }
  ASSIGN_OR_RETURN(LockFile data_lock,
                   LockFile::Take(options_.data_dir, options_.private_daemon));
  locks_.push_back(std::move(data_lock));
  // Both may be the same folder, which can be locked only once.
  std::error_code error;
  if (std::filesystem::equivalent(options_.data_dir, runtime_dir, error)) {
    return OkStatus();
  }
  ASSIGN_OR_RETURN(LockFile runtime_lock,
                   LockFile::Take(runtime_dir, options_.private_daemon));
  locks_.push_back(std::move(runtime_lock));
  return OkStatus();
}

Status Daemon::Impl::LearnSecret() {
  StatusOr<Secret> secret = options_.token_file.empty()
                                ? Secret::ReadOrMake(TokenFile())
                                : Secret::Read(options_.token_file);
  if (!secret.ok()) return secret.status();
  secret_ = *std::move(secret);
  return OkStatus();
}

Status Daemon::Impl::BindPorts() {
  const auto bind = [this](const char* flag, const std::string& text,
                           Serves serves) -> StatusOr<Listener*> {
    ASSIGN_OR_RETURN(const Address address, ParseAddress(flag, text));
    if (!IsLoopback(address) &&
        (options_.tls.certificate.empty() || options_.token_file.empty())) {
      return InvalidArgument(
          StrCat(flag, ": ", text,
                 " is reached from other machines: that needs --tls-cert, "
                 "--tls-key and --token-file; else listen on 127.0.0.1 and "
                 "reach it by `ssh -L`"));
    }
    // Behind TLS, the protocol is known only after the handshake.
    if (!options_.tls.certificate.empty()) serves = Serves::kHttp;
    ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                     Listener::Bind(address, serves));
    listeners_.push_back(std::move(listener));
    return listeners_.back().get();
  };
  if (!options_.listen.empty()) {
    ASSIGN_OR_RETURN(Listener * both,
                     bind("--listen", options_.listen, Serves::kBoth));
    http_listener_ = both;
    grpc_listener_ = both;
    return OkStatus();
  }
  if (!options_.grpc_listen.empty()) {
    ASSIGN_OR_RETURN(grpc_listener_, bind("--grpc-listen", options_.grpc_listen,
                                          Serves::kGrpc));
  }
  if (!options_.http_listen.empty()) {
    ASSIGN_OR_RETURN(http_listener_, bind("--http-listen", options_.http_listen,
                                          Serves::kHttp));
  }
  return OkStatus();
}

Status Daemon::Impl::StartServices() {
  planning_ = std::make_unique<Planning>(*store_, hub_, metrics_,
                                         Quota(options_.max_run_bytes));
  watcher_ = std::make_unique<RunWatcher>(*store_, hub_, followers_);
  short_work_ = std::make_unique<WorkerPool>(kShortThreads, kMaxShortWaiting);
  planners_ = std::make_unique<WorkerPool>(kPlanThreads, kMaxPlansWaiting,
                                           kPromptPlanThreads);
  std::vector<uint16_t> ports;
  for (const auto& listener : listeners_) {
    ports.push_back(listener->address().port);
  }
  const IdentifyCaller identify =
      MakeIdentify(std::move(ports), [this](const std::string& name) {
        return tls_ != nullptr ? tls_->PeerBehind(name) : std::nullopt;
      });
  audit_ = std::make_unique<Audit>(*store_, identify);
  methods_.WrapCalls([this](std::string_view path,
                            const google::protobuf::Message& request,
                            std::shared_ptr<Call> call) {
    return audit_->Wrap(path, request, std::move(call));
  });
  services_.reset(new Services{
      .store = *store_,
      .hub = hub_,
      .metrics = metrics_,
      .planning = *planning_,
      .watcher = *watcher_,
      .short_work = *short_work_,
      .planners = *planners_,
      .sent_graphs = sent_graphs_,
      .fill_status = [this](v1::ServerStatus& status) { FillStatus(status); },
      .open_window =
          [this](const std::string& run_id, const v1::OpenWindow& window) {
            return ingest_->OpenWindow(run_id, window);
          },
      .push_plan =
          [this](const std::string& run_id, const v1::Plan& plan,
                 const std::string& replaces) {
            return ingest_->PushPlan(run_id, plan, replaces);
          },
      .audit = *audit_,
      .followers = followers_,
      .quota = Quota(options_.max_run_bytes)});
  AddMethods(*services_, methods_);
  AddAdminMethods(*services_, options_.data_dir + "/reprise.db", methods_);
  committer_ = std::make_unique<Committer>(
      *store_, hub_, metrics_,
      [this](const std::string& run_id,
             const std::vector<v1::StepReport>& steps) {
        OnSteps(run_id, steps);
      },
      options_.max_run_bytes);
  ingest_ = std::make_unique<IngestService>(*committer_, metrics_, identify);
  grpc_services_ = MakeGrpcServices(*services_, methods_);
  std::vector<grpc::Service*> all = {ingest_.get()};
  for (const auto& service : grpc_services_) all.push_back(service.get());
  ASSIGN_OR_RETURN(grpc_, GrpcServer::Start(all, *secret_));
  routes_.reset(new Routes{.methods = methods_,
                           .files = WebFiles(),
                           .not_ready = [this] { return NotReady(); },
                           .metrics = [this] { return MetricsText(); },
                           .secret = *secret_});
  imports_ = std::make_unique<ImportUploads>(
      options_.data_dir, grpc_->InProcessChannel(), *audit_);
  graph_posts_ = std::make_unique<GraphPosts>(*services_);
  http_ = std::make_unique<HttpServer>(
      MakeHandler(*routes_),
      MakeUploadOpener(*routes_, *imports_, graph_posts_.get()));
  // The first list of runs reads all of them: not while somebody waits for it.
  (void)short_work_->Post([this] { (void)ListRuns(*services_, {}); });
  return OkStatus();
}

Status Daemon::Impl::StartTls() {
  const TlsOptions& tls = options_.tls;
  if (tls.certificate.empty()) return OkStatus();
  ASSIGN_OR_RETURN(tls_name_, NameInCertificate(tls.certificate));
  // In split mode each port has one protocol, whatever the client offers.
  const bool grpc = grpc_listener_.has_value();
  const bool http = http_listener_.has_value();
  ASSIGN_OR_RETURN(
      tls_, TlsFront::Start(
                tls,
                [this, grpc](int fd) {
                  grpc ? grpc_->AdoptPaired(fd) : (void)::close(fd);
                },
                [this, http](int fd) {
                  http ? http_->Adopt(fd, /*tls=*/true) : (void)::close(fd);
                }));
  return OkStatus();
}

Status Daemon::Impl::StartCollector() {
  CollectorOptions options;
  options.agent_socket = options_.agent_socket;
  options.spool_path = options_.data_dir + "/spool.db";
  options.channel = grpc_->InProcessChannel();
  options.version = VersionText();
  return OpenAnyway(options.spool_path, [&]() -> Status {
    ASSIGN_OR_RETURN(collector_, Collector::Start(options));
    return OkStatus();
  });
}

Status Daemon::Impl::StartUplink() {
  if (options_.forward.target.empty()) return OkStatus();
  UplinkOptions uplink{.forward = options_.forward,
                       .channel = nullptr,
                       .started_ns = started_ns_};
  ASSIGN_OR_RETURN(uplink.channel, ChannelToCentral(options_.forward));
  const std::string path = options_.data_dir + "/forward.db";
  return OpenAnyway(path, [&]() -> Status {
    ASSIGN_OR_RETURN(Outbox outbox,
                     Outbox::Open(path, options_.forward.target));
    uplink_ = std::make_unique<Uplink>(
        *store_, hub_, uplink, std::move(outbox),
        [this](const std::string& run_id, const std::string& session_id,
               const v1::Down& down) { Relay(run_id, session_id, down); });
    return OkStatus();
  });
}

// Passes on what somebody asked the centre for. A plan is checked and stored
// first, as an answer to the request of the plan that it replaces. Where that is
// another machine's, only the job's executor checks it.
void Daemon::Impl::Relay(const std::string& run_id,
                         const std::string& session_id, const v1::Down& down) {
  if (down.has_plan()) {
    v1::PutPlanRequest request;
    request.set_run_id(run_id);
    *request.mutable_plan() = down.plan().plan();
    request.set_newest(true);
    Status stored = store_->Read([&](Database& db) -> Status {
      ASSIGN_OR_RETURN(PlanRow old, LoadPlan(db, down.plan().replaces()));
      *request.mutable_request() = std::move(old.request);
      return OkStatus();
    });
    request.mutable_request()->set_budget(request.plan().budget());
    if (stored.ok()) stored = PutPlan(*services_, request).status();
    if (!stored.ok() && stored.code() != Code::kNotFound) {
      LogWarning("plan_refused",
                 StrCat("run ", run_id,
                        ": a plan from the centre is not "
                        "taken: ",
                        stored.message()),
                 {{"run_id", run_id}});
      return;
    }
  }
  (void)ingest_->Relay(session_id, down);
}

Status Daemon::Impl::Announce() {
  const std::string http = http_address();
  const std::string grpc = grpc_address();
  nlohmann::json json;
  json["listen"] = grpc.empty() ? http : grpc;
  json["url"] = http.empty() ? "" : PageAddress();
  if (tls_ != nullptr) {
    // For commands on this machine: the only certificate to trust.
    json["certificate"] =
        std::filesystem::absolute(options_.tls.certificate).string();
  }
  json["pid"] = ::getpid();
  json["version"] = VersionText();
  json["token_file"] = std::filesystem::absolute(TokenCopy()).string();
  json["agent_socket"] = options_.agent_socket;
  json["data_dir"] = options_.data_dir;
  announced_ = true;
  RETURN_IF_ERROR(WriteFileAtomically(TokenCopy(), secret_->token() + "\n"));
  RETURN_IF_ERROR(WriteFileAtomically(ServerFile(), json.dump(2) + "\n"));
  LogInfo("listening",
          http == grpc
              ? StrCat("listening on ", http)
              : StrCat("listening on ", grpc.empty() ? "nothing" : grpc,
                       " for gRPC and on ", http.empty() ? "nothing" : http,
                       " for HTTP"),
          {{"http", http},
           {"grpc", grpc},
           {"pid", int64_t{::getpid()}},
           {"version", VersionText()}});
  // The token is meant for the person at the terminal, not for readers of logs.
  if (!http.empty() && ::isatty(STDERR_FILENO) == 1) {
    LogInfo("page",
            StrCat("the page: ", PageAddress(), "/?token=", secret_->token()));
  } else if (!http.empty()) {
    LogInfo("page", "the page: `reprise status` prints its link");
  }
  LogInfo("ready",
          StrCat("agents connect to ", options_.agent_socket, "; runs are in ",
                 store_->place()),
          {{"agent_socket", options_.agent_socket},
           {"data_dir", options_.data_dir},
           {"store", store_->place()}});
  return OkStatus();
}

// After planned steps above their budget: plans again, off the committer's
// thread.
void Daemon::Impl::OnSteps(const std::string& run_id,
                           const std::vector<v1::StepReport>& steps) {
  std::string plan_id;
  int64_t peak_bytes = 0;
  for (const v1::StepReport& step : steps) {
    // Steps that did not follow the plan to the end do not count.
    if (!step.planned() || step.kept_all() || step.oom()) continue;
    if (step.plan_id().empty()) continue;
    if (step.plan_id() != plan_id) peak_bytes = 0;
    plan_id = step.plan_id();
    peak_bytes = std::max(peak_bytes, step.peak_bytes());
  }
  if (plan_id.empty()) return;
  const auto replan = [this, run_id, plan_id, peak_bytes] {
    const std::optional<v1::Plan> plan =
        planning_->Replan(run_id, plan_id, peak_bytes);
    if (!plan) return;
    v1::AuditEntry entry;
    entry.set_action("replan");
    entry.set_run_id(run_id);
    entry.set_subject(StrCat("plan ", plan->plan_id()));
    entry.set_detail(StrCat("replaces plan ", plan_id, ", which measured ",
                            peak_bytes, " bytes"));
    audit_->Add(std::move(entry));
    ingest_->PushPlan(run_id, *plan, plan_id);
  };
  (void)planners_->Post(replan, Lane::kJob);
}

void Daemon::Impl::FillStatus(v1::ServerStatus& status) const {
  status.set_version(VersionText());
  status.set_revision(REPRISE_REVISION);
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

std::string Daemon::Impl::NotReady() const {
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

std::string Daemon::Impl::MetricsText() const {
  std::string text = StrCat(
      "# HELP reprise_build_info The running build.\n"
      "# TYPE reprise_build_info gauge\n"
      "reprise_build_info{version=\"",
      VersionText(), "\",revision=\"", REPRISE_REVISION, "\"} 1\n");
  text += metrics_.Text();
  text += MetricText("reprise_store_size_bytes", "gauge",
                     "Bytes of the database and its log.", store_->SizeBytes());
  if (uplink_ != nullptr) {
    v1::ForwardStatus forward;
    uplink_->FillStatus(forward);
    text += MetricText("reprise_forward_due_chunks", "gauge",
                       "Chunks that the central daemon has not acknowledged.",
                       static_cast<int64_t>(forward.chunks()));
    text += MetricText("reprise_forward_up", "gauge",
                       "Whether the central daemon takes what is stored here.",
                       forward.trouble().empty() ? 1 : 0);
  }
  if (collector_ == nullptr) return text;
  const CollectorStats stats = collector_->stats();
  const auto number = [](uint64_t value) {
    return static_cast<int64_t>(value);
  };
  text +=
      MetricText("reprise_agent_sessions", "gauge",
                 "Agents that are connected.", collector_->ConnectedAgents());
  text +=
      MetricText("reprise_ring_records_total", "counter",
                 "Records taken from agents' rings.", number(stats.records));
  text +=
      MetricText("reprise_spool_bytes", "gauge",
                 "Bytes of the collector's spool.", collector_->spool_bytes());
  text += MetricText("reprise_indexed_steps_bytes", "gauge",
                     "Memory of traced steps that pages asked for lately.",
                     static_cast<int64_t>(services_->steps.held_bytes()));
  text +=
      MetricText("reprise_collector_chunks_acked_total", "counter",
                 "Chunks the server acknowledged.", number(stats.chunks_acked));
  return text;
}

// A burst of requests leaves much freed memory in malloc (malloc_policy.h).
// Keeping it pays for chunks, but not after a large burst.
void Daemon::Impl::ReturnMemory() {
  constexpr uint64_t kCrowd = 16 << 20;
  const uint64_t graphs = sent_graphs_.EmptiedFrom();
  const uint64_t bodies = http_->BodiesEmptiedFrom();
  const uint64_t steps = services_->steps.DropIdle();
  if (std::max({graphs, bodies, steps}) > kCrowd) ::malloc_trim(0);
}

bool Daemon::Impl::Tick() {
  const Clock::time_point now = Clock::now();
  // Daemons that share a store may not see each other's processes, such as those
  // of another container: whoever collects from a session ends it.
  if (!store_->shared() && now - last_orphans_ >= kOrphanPause) {
    last_orphans_ = now;
    const Status status =
        EndOrphans(*store_, hub_, [this](const std::string& session_id) {
          return ingest_->Connected(session_id);
        });
    if (!status.ok()) LogWarning("store_failed", status.message());
  }
  if (now >= next_retention_) {
    const StatusOr<int> removed = ApplyRetention(
        *store_, *audit_, {options_.keep_seconds, options_.keep_bytes},
        RealtimeNs());
    if (!removed.ok())
      LogWarning("retention_failed", removed.status().message());
    // If there may be more to remove, continue at the next tick.
    const bool more = removed.ok() && *removed > 0;
    KeepRoom(options_.data_dir);
    next_retention_ = more ? now : now + kRetentionPause;
  }
  ReturnMemory();
  if (!options_.private_daemon) return false;
  // Without its socket nobody can find the daemon any more.
  if (::access(options_.agent_socket.c_str(), F_OK) != 0) return true;
  // A disconnected agent stays listed until the server knows its end. If the
  // parent has exited, getppid() changes. An open page sends requests
  // regularly.
  const uint64_t asked = metrics_.calls_started;
  if (!collector_->Agents().empty() || getppid() == options_.with_parent ||
      asked != asked_before_ || metrics_.calls_under_way > 0) {
    asked_before_ = asked;
    last_needed_ = now;
  }
  return now - last_needed_ >= seconds(options_.linger_seconds) &&
         collector_->Retire();
}

void Daemon::Impl::Stop(milliseconds patience) {
  if (stopping_.exchange(true)) return;
  if (grpc_ != nullptr) grpc_->StopServing();
  if (collector_ != nullptr && patience.count() > 0) {
    const Status drained = collector_->Drain(patience);
    if (!drained.ok()) {
      LogWarning("not_drained",
                 StrCat("the rest stays in the spool: ", drained.message()));
    }
  }
  if (uplink_ != nullptr && patience.count() > 0) uplink_->Drain(patience);
  if (ingest_ != nullptr) ingest_->DrainAll();
  for (const auto& listener : listeners_) listener->Stop();
  if (planning_ != nullptr) planning_->Stop();
  if (watcher_ != nullptr) watcher_->Stop();
  if (planners_ != nullptr) planners_->Stop();
  // Everything that asks the collector must end before it.
  if (short_work_ != nullptr) short_work_->Stop();
  if (imports_ != nullptr) imports_->Stop();
  if (http_ != nullptr) http_->Stop();
  collector_.reset();
  uplink_.reset();
  if (grpc_ != nullptr) {
    grpc_->Shutdown(patience.count() > 0 ? kCallGrace : milliseconds(0));
  }
  if (tls_ != nullptr) tls_->Stop();
  if (committer_ != nullptr) committer_->Stop();
  if (store_ != nullptr) {
    if (const Status status = store_->Checkpoint(); !status.ok()) {
      LogWarning("store_failed", status.message());
    }
  }
  Abandon();
}

// ---- Daemon ----

Daemon::Daemon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;

StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Daemon>(new Daemon(std::move(impl)));
}

std::string Daemon::http_address() const { return impl_->http_address(); }
std::string Daemon::grpc_address() const { return impl_->grpc_address(); }
bool Daemon::Tick() { return impl_->Tick(); }
bool Daemon::MayYield() { return impl_->MayYield(); }
void Daemon::Stop(milliseconds patience) { impl_->Stop(patience); }
void Daemon::Abandon() { impl_->Abandon(); }

}  // namespace reprise::server
