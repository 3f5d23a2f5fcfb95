// SPDX-License-Identifier: Apache-2.0
//
// Starting a daemon: locks, ports, the store and the components on it.
#include <unistd.h>

#include <filesystem>

#include "server/core/build_info.h"
#include "server/core/grpc_peer.h"
#include "server/core/log.h"
#include "server/core/paths.h"
#include "server/daemon/daemon_impl.h"
#include "server/net/address.h"
#include "server/service/calls/grpc_services.h"
#include "server/service/calls/handlers.h"
#include "server/service/calls/rules.h"
#include "server/store/damage.h"

namespace reprise::server {

namespace {

constexpr int kShortThreads = 3;
constexpr int kPromptShortThreads = 1;
constexpr size_t kMaxShortWaiting = 1024;
constexpr int kPlanThreads = 2;
constexpr int kPromptPlanThreads = 1;
constexpr size_t kMaxPlansWaiting = 64;
constexpr char kPrivateHost[] = "127.0.0.1:";

}  // namespace

Status RunningDaemon::Start() {
  // All that a flag can get wrong comes before TakeLocks, which ends a private
  // daemon: a_mistyped_serve_leaves_the_private_daemon in test_cli_server.py.
  RETURN_IF_ERROR(UseFlags());
  const Status bound = BindPorts();
  const bool in_use = bound.code() == Code::kAlreadyExists;
  if (!bound.ok() && !in_use) return bound;
  const Status locked = TakeLocks(/*asks=*/!in_use || IsAnnouncedPort());
  if (in_use && locked.code() == Code::kAlreadyExists) return bound;
  RETURN_IF_ERROR(locked);
  // Left over from a daemon that was killed; it would be mistaken for ours.
  RemoveAnnouncement(options_.agent_socket);
  RETURN_IF_ERROR(LearnSecret());
  if (!bound.ok()) {
    RETURN_IF_ERROR(BindPorts());
  }
  const std::string database = options_.data_dir + "/reprise.db";
  RETURN_IF_ERROR(OpenAnyway(database, [&]() -> Status {
    ASSIGN_OR_RETURN(store_,
                     Store::Open({.path = database,
                                  .url = options_.store_url,
                                  .max_pages = options_.max_store_pages}));
    return OkStatus();
  }));
  RETURN_IF_ERROR(LearnNewest());
  store_->Watch([this](const std::string& run_id) {
    run_id.empty() ? hub_.NotifyAll() : hub_.Notify(run_id);
  });
  RETURN_IF_ERROR(StartServices());
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
  return AnnounceSelf();
}

// A daemon that fails to start would leave every job without a plan.
Status RunningDaemon::OpenAnyway(const std::string& path,
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

Status RunningDaemon::TakeLocks(bool asks) {
  const std::string runtime_dir = FolderOf(options_.agent_socket);
  RETURN_IF_ERROR(EnsureOwnFolder(options_.data_dir));
  RETURN_IF_ERROR(EnsureOwnFolder(runtime_dir));
  for (const char* name : {"reprise.db", "spool.db"}) {
    for (const char* part : {"", "-wal", "-shm"}) {
      MakePrivate(StrCat(options_.data_dir, "/", name, part));
    }
  }
  ASSIGN_OR_RETURN(
      LockFile data_lock,
      LockFile::Take(options_.data_dir, options_.private_daemon, asks));
  locks_.push_back(std::move(data_lock));
  // Both may be the same folder, which can be locked only once.
  std::error_code error;
  if (std::filesystem::equivalent(options_.data_dir, runtime_dir, error)) {
    return OkStatus();
  }
  ASSIGN_OR_RETURN(LockFile runtime_lock,
                   LockFile::Take(runtime_dir, options_.private_daemon, asks));
  locks_.push_back(std::move(runtime_lock));
  return OkStatus();
}

// Reads what the flags name, and keeps it.
Status RunningDaemon::UseFlags() {
  if (!options_.token_file.empty()) {
    ASSIGN_OR_RETURN(tokens_, Tokens::Read(options_.token_file));
  }
  RETURN_IF_ERROR(StartTls());
  if (!options_.forward.target.empty()) {
    ASSIGN_OR_RETURN(central_, ChannelToCentral(options_.forward));
  }
  return OkStatus();
}

// A port in use may be that of the daemon whose place this one takes.
bool RunningDaemon::IsAnnouncedPort() const {
  for (const std::string& text :
       {options_.listen, options_.grpc_listen, options_.http_listen}) {
    const StatusOr<Address> address = ParseAddress("", text);
    if (address.ok() && IsAnnounced(options_.agent_socket, address->Text())) {
      return true;
    }
  }
  return false;
}

Status RunningDaemon::LearnSecret() {
  if (tokens_) return OkStatus();
  // Whoever took the port of a daemon that was killed may have been sent its
  // token or a cookie since.
  if (locks_.front().was_left() && ::unlink(TokenFile().c_str()) == 0) {
    LogWarning("token_replaced",
               "the last daemon of this folder was killed: there is a new "
               "token, and links and cookies from before no longer work; "
               "`reprise status` prints the new link");
  }
  StatusOr<Secret> secret = Secret::ReadOrMake(TokenFile());
  if (!secret.ok()) return secret.status();
  tokens_.emplace(*std::move(secret));
  return OkStatus();
}

// Whether it is a private daemon that nobody gave a port.
bool RunningDaemon::IsAnyPort() const {
  return options_.private_daemon && options_.listen == StrCat(kPrivateHost, 0);
}

Status RunningDaemon::BindPorts() {
  listeners_.clear();
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
    const uint16_t kept = IsAnyPort() ? KeptPort(options_.data_dir) : 0;
    StatusOr<Listener*> both = bind(
        "--listen", kept == 0 ? options_.listen : StrCat(kPrivateHost, kept),
        Serves::kBoth);
    if (!both.ok() && kept != 0) {
      both = bind("--listen", options_.listen, Serves::kBoth);
    }
    RETURN_IF_ERROR(both.status());
    http_listener_ = *both;
    grpc_listener_ = *both;
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

Status RunningDaemon::StartServices() {
  planning_ = std::make_unique<Planning>(*store_, hub_, metrics_,
                                         Quota(options_.max_run_bytes));
  watcher_ = std::make_unique<RunWatcher>(*store_, hub_, followers_);
  short_work_ = std::make_unique<WorkerPool>(kShortThreads, kMaxShortWaiting,
                                             kPromptShortThreads);
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
  const Authenticate authenticate = [this](const Credentials& given) {
    return tokens_->Find(given);
  };
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
      .identify = identify,
      .authenticate = authenticate,
      .followers = followers_,
      .quota = Quota(options_.max_run_bytes)});
  AddMethods(*services_, methods_);
  methods_.AskBefore(MakeGate(*services_));
  methods_.WrapCalls(MakeChangeLog(*services_));
  committer_ = std::make_unique<Committer>(
      *store_, hub_, metrics_,
      [this](const std::string& run_id,
             const std::vector<v1::StepReport>& steps) {
        OnSteps(run_id, steps);
      },
      options_.max_run_bytes);
  ingest_ = std::make_unique<IngestService>(
      *committer_, metrics_,
      [this, authenticate](
          const grpc::CallbackServerContext& context) -> StatusOr<Caller> {
        if (IsWithinProcess(context)) {
          return Caller{.who = "", .peer = "", .access = kOwnAccess};
        }
        const Access access = AccessOf(context, authenticate);
        RETURN_IF_ERROR(CheckMayCall(access, "/reprise.v1.Ingest/Stream"));
        return services_->identify(context.peer(), access);
      });
  grpc_service_ = MakeGrpcService(*services_, methods_);
  ASSIGN_OR_RETURN(
      grpc_,
      GrpcServer::Start({ingest_.get(), grpc_service_.get()}, authenticate));
  routes_.reset(new Routes{.methods = methods_,
                           .files = WebFiles(),
                           .not_ready = [this] { return NotReady(); },
                           .metrics = [this] { return MetricsText(); },
                           .tokens = *tokens_});
  imports_ = std::make_unique<ImportUploads>(
      options_.data_dir, grpc_->InProcessChannel(), *store_, identify);
  graph_posts_ = std::make_unique<GraphPosts>(*services_);
  http_ = std::make_unique<HttpServer>(
      MakeHandler(*routes_),
      MakeUploadOpener(*routes_, *imports_, graph_posts_.get()));
  // The first list of runs reads all of them: not while somebody waits for it.
  (void)short_work_->Post([this] { (void)ListRuns(*services_, {}); });
  return OkStatus();
}

Status RunningDaemon::StartTls() {
  const TlsOptions& tls = options_.tls;
  if (tls.certificate.empty()) return OkStatus();
  ASSIGN_OR_RETURN(tls_name_, NameInCertificate(tls.certificate));
  // In split mode each port has one protocol, whatever the client offers.
  const bool both = !options_.listen.empty();
  const bool grpc = both || !options_.grpc_listen.empty();
  const bool http = both || !options_.http_listen.empty();
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

Status RunningDaemon::StartCollector() {
  CollectorOptions options;
  options.agent_socket = options_.agent_socket;
  options.spool_path = options_.data_dir + "/spool.db";
  options.channel = grpc_->InProcessChannel();
  options.version = kVersion;
  return OpenAnyway(options.spool_path, [&]() -> Status {
    ASSIGN_OR_RETURN(collector_, Collector::Start(options));
    return OkStatus();
  });
}

Status RunningDaemon::StartUplink() {
  if (options_.forward.target.empty()) return OkStatus();
  const std::string path = options_.data_dir + "/forward.db";
  return OpenAnyway(path, [&]() -> Status {
    ASSIGN_OR_RETURN(Outbox outbox,
                     Outbox::Open(path, options_.forward.target));
    uplink_ = std::make_unique<Uplink>(
        *store_, hub_, options_.forward, central_, started_ns_,
        std::move(outbox),
        [this](const std::string& run_id, const std::string& session_id,
               const v1::Down& down) { Relay(run_id, session_id, down); });
    return OkStatus();
  });
}

}  // namespace reprise::server
