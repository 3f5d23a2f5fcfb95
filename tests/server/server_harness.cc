// SPDX-License-Identifier: Apache-2.0
#include "tests/server/server_harness.h"

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_interceptor.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/crc32c.h"
#include "base/str_cat.h"
#include "tests/server/postgres_cluster.h"

namespace reprise::server {

// ---- TemporaryFolder ----

mode_t ModeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "reprised-XXXXXX").string();
  path_ = ::mkdtemp(pattern.data());
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// ---- ChannelTo ----

namespace {

class TokenSender final : public grpc::experimental::Interceptor {
 public:
  explicit TokenSender(std::string token) : token_(std::move(token)) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* call) override {
    if (call->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::
                PRE_SEND_INITIAL_METADATA)) {
      call->GetSendInitialMetadata()->emplace("authorization",
                                              "Bearer " + token_);
    }
    call->Proceed();
  }

 private:
  const std::string token_;
};

class TokenSenders final
    : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenSenders(std::string token) : token_(std::move(token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenSender(token_);
  }

 private:
  const std::string token_;
};

}  // namespace

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address,
                                         const std::string& token) {
  std::vector<
      std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
      senders;
  if (!token.empty()) senders.push_back(std::make_unique<TokenSenders>(token));
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, grpc::InsecureChannelCredentials(), {}, std::move(senders));
}

// ---- TestServer ----

bool InPostgres() {
  const char* store = std::getenv("REPRISE_TEST_STORE");
  return store != nullptr && std::string_view(store) == "postgresql";
}

DaemonOptions TestServer::DefaultOptions() {
  DaemonOptions options;
  options.listen = "127.0.0.1:0";
  return options;
}

TestServer::TestServer(DaemonOptions options) : options_(std::move(options)) {
  SetLogLevel(LogLevel::kOff);
  if (InPostgres() && options_.store_url.empty()) {
    options_.store_url = PostgresCluster::Shared().NewDatabase();
  }
  if (options_.data_dir.empty()) options_.data_dir = folder() + "/data";
  if (options_.agent_socket.empty()) {
    options_.agent_socket = folder() + "/run/agent.sock";
  }
  Start();
}

TestServer::~TestServer() { Stop(); }

void TestServer::Start() {
  StatusOr<std::unique_ptr<Daemon>> started = Daemon::Start(options_);
  if (!started.ok()) {
    ADD_FAILURE() << started.status().message();
    std::abort();
  }
  daemon_ = *std::move(started);
  if (daemon_->grpc_address().empty()) return;
  channel_ = ChannelTo(daemon_->grpc_address(), token());
  planner_ = v1::Planner::NewStub(channel_);
  query_ = v1::Query::NewStub(channel_);
  ingest_ = v1::Ingest::NewStub(channel_);
}

void TestServer::Stop() {
  if (daemon_ == nullptr) return;
  daemon_->Stop(std::chrono::seconds(5));
  daemon_.reset();
}

int ConnectTo(const std::string& address) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(
      static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

std::string TestServer::token() const {
  std::ifstream file(options_.token_file.empty() ? options_.data_dir + "/token"
                                                 : options_.token_file);
  std::string token;
  std::getline(file, token);
  return token;
}

std::string TestServer::authorization() const {
  return StrCat("Authorization: Bearer ", token(), "\r\n");
}

std::string TestServer::Http(const std::string& bytes) const {
  constexpr std::string_view kHost = "Host: localhost\r\n";
  const std::string header = authorization();
  std::string with_token = bytes;
  for (size_t at = 0; (at = with_token.find(kHost, at)) != std::string::npos;) {
    at += kHost.size();
    with_token.insert(at, header);
  }
  return HttpWithoutToken(with_token);
}

std::string TestServer::HttpWithoutToken(const std::string& bytes) const {
  const int fd = ConnectTo(daemon_->http_address());
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  std::string answer;
  char buffer[4096];
  while (true) {
    const ssize_t n = ::recv(fd, buffer, sizeof(buffer), 0);
    if (n <= 0) break;
    answer.append(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  return answer;
}

std::string TestServer::Post(const std::string& path,
                             const std::string& content_type,
                             const std::string& body) const {
  return Http(StrCat("POST ", path,
                     " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     "Content-Type: ",
                     content_type, "\r\nContent-Length: ", body.size(),
                     "\r\n\r\n", body));
}

int64_t TestServer::CountRows(const std::string& sql) const {
  const auto store = Store::Open(
      {.path = options_.data_dir + "/reprise.db", .url = options_.store_url});
  int64_t count = -1;
  if (!store.ok()) return count;
  const Status read = (*store)->Read([&](Database& database) -> Status {
    ASSIGN_OR_RETURN(Statement statement, database.Prepare(sql));
    ASSIGN_OR_RETURN(const bool row, statement.Step());
    if (row) count = statement.Int(0);
    return OkStatus();
  });
  EXPECT_TRUE(read.ok()) << read.message();
  return count;
}

std::string TestServer::PutGraph(const v1::StepGraph& graph,
                                 const std::string& run_id) {
  grpc::ClientContext context;
  v1::GraphRef ref;
  const auto writer = planner().PutGraph(&context, &ref);
  // Sends the graph in two parts, like a large one.
  const std::string bytes = graph.SerializeAsString();
  v1::GraphPart part;
  part.set_run_id(run_id);
  part.set_data(bytes.substr(0, bytes.size() / 2));
  writer->Write(part);
  part.Clear();
  part.set_data(bytes.substr(bytes.size() / 2));
  writer->Write(part);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return ref.graph_id();
}

v1::Plan TestServer::Plan(const v1::PlanRequest& request) {
  grpc::ClientContext context;
  const auto reader = planner().Plan(&context, request);
  v1::Plan plan;
  v1::PlanEvent event;
  while (reader->Read(&event)) {
    if (event.has_plan()) plan = event.plan();
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return plan;
}

grpc::Status TestServer::PlanError(const v1::PlanRequest& request) {
  grpc::ClientContext context;
  const auto reader = planner().Plan(&context, request);
  v1::PlanEvent event;
  while (reader->Read(&event)) {
  }
  return reader->Finish();
}

v1::Run TestServer::GetRun(const std::string& run_id) {
  grpc::ClientContext context;
  v1::GetRunRequest request;
  request.set_run_id(run_id);
  v1::Run run;
  const grpc::Status status = query().GetRun(&context, request, &run);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return run;
}

// ---- Sender ----

Sender::Sender(v1::Ingest::Stub& stub, const std::string& session_id,
               const std::string& run_id, uint64_t epoch) {
  context_.set_wait_for_ready(true);
  stream_ = stub.Stream(&context_);
  hello.set_proto_version(1);
  hello.set_min_version(1);
  hello.set_session_id(session_id);
  hello.set_run_id(run_id);
  hello.set_producer_epoch(epoch);
  hello.mutable_info()->set_host("here");
  hello.mutable_info()->set_realtime_ns(1);
  (*hello.mutable_info()->mutable_labels())["name"] = "train";
}

Sender::~Sender() {
  if (finished_) return;
  context_.TryCancel();
  (void)stream_->Finish();
}

std::optional<uint64_t> Sender::Greet() {
  v1::Up up;
  *up.mutable_hello() = hello;
  (void)stream_->Write(up);
  const std::optional<v1::Down> down = Read();
  if (!down || !down->has_welcome()) return std::nullopt;
  return down->welcome().resume_after();
}

bool Sender::Write(const v1::Up& up) { return stream_->Write(up); }

bool Sender::SendChunk(const v1::Chunk& chunk) {
  v1::Up up;
  *up.mutable_chunk() = chunk;
  return Write(up);
}

bool Sender::Bye(bool killed) {
  v1::Up up;
  up.mutable_bye()->set_killed(killed);
  return Write(up);
}

std::optional<v1::Down> Sender::Read() {
  v1::Down down;
  if (!stream_->Read(&down)) return std::nullopt;
  return down;
}

bool Sender::AwaitAck(uint64_t seq) {
  while (const std::optional<v1::Down> down = Read()) {
    if (down->has_ack() && down->ack().committed() >= seq) return true;
  }
  return false;
}

grpc::Status Sender::Finish() {
  stream_->WritesDone();
  while (Read()) {
  }
  finished_ = true;
  return stream_->Finish();
}

std::string RawCall(const std::shared_ptr<grpc::Channel>& channel,
                    const std::string& method, const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer bytes(&slice, 1);
  grpc::ByteBuffer answer;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, method, bytes, &queue);
  call->StartCall();
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!ok || !status.ok()) return "";
  std::vector<grpc::Slice> slices;
  (void)answer.Dump(&slices);
  std::string text;
  for (const grpc::Slice& part : slices) {
    text.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return text;
}

// ---- Messages ----

v1::Chunk MakeChunk(uint64_t seq, const v1::Columns& columns, uint32_t count) {
  v1::Chunk chunk;
  chunk.set_seq(seq);
  chunk.set_count(count);
  chunk.set_body(columns.SerializeAsString());
  chunk.set_crc32c(Crc32c(chunk.body()));
  uint64_t first = 0;
  uint64_t last = 0;
  for (const uint64_t time : columns.start_ns()) {
    if (first == 0) first = time;
    last = time;
  }
  chunk.set_t0_ns(first);
  chunk.set_t1_ns(last);
  return chunk;
}

v1::Chunk OpChunk(uint64_t seq, uint32_t count) {
  v1::Columns columns;
  for (uint32_t i = 0; i < count; ++i) {
    columns.add_start_ns(seq);
    columns.add_kind(v1::RECORD_KIND_OP_BEGIN);
    columns.add_op(i);
  }
  return MakeChunk(seq, columns, count);
}

v1::Chunk StepChunk(uint64_t seq, const std::vector<v1::StepReport>& steps) {
  v1::Columns columns;
  for (const v1::StepReport& step : steps) *columns.add_steps() = step;
  return MakeChunk(seq, columns, 0);
}

v1::StepGraph SmallGraph() {
  v1::StepGraph graph;
  graph.set_name("small");
  graph.set_static_bytes(1024);
  const auto storage = [&](int64_t bytes, const char* name) {
    v1::Storage& made = *graph.add_storages();
    made.set_id(static_cast<uint32_t>(graph.storages_size() - 1));
    made.set_bytes(bytes);
    made.set_name(name);
    made.set_category(v1::CATEGORY_ACTIVATION);
  };
  const auto op = [&](v1::Phase phase, v1::OpKind kind, int64_t time_ns,
                      const std::vector<uint32_t>& reads,
                      const std::vector<uint32_t>& writes) {
    v1::Op& made = *graph.add_ops();
    made.set_id(static_cast<uint32_t>(graph.ops_size() - 1));
    made.set_name("aten.op" + std::to_string(made.id()));
    made.set_module("layers.0");
    made.set_phase(phase);
    made.set_kind(kind);
    made.set_time_ns(time_ns);
    made.mutable_reads()->Assign(reads.begin(), reads.end());
    made.mutable_writes()->Assign(writes.begin(), writes.end());
  };
  storage(4096, "x");
  storage(8192, "y");
  storage(8192, "z");
  storage(4096, "g");
  op(v1::PHASE_FORWARD, v1::OP_KIND_PURE, 1000, {}, {0});
  op(v1::PHASE_FORWARD, v1::OP_KIND_PURE, 2000, {0}, {1});
  op(v1::PHASE_FORWARD, v1::OP_KIND_PURE, 3000, {1}, {2});
  op(v1::PHASE_BACKWARD, v1::OP_KIND_PURE, 3000, {2}, {3});
  op(v1::PHASE_BACKWARD, v1::OP_KIND_ONCE, 1000, {0, 3}, {});
  return graph;
}

v1::PlanRequest RequestFor(const std::string& graph_id,
                           const std::string& budget) {
  v1::PlanRequest request;
  request.set_graph_id(graph_id);
  request.set_budget(budget);
  return request;
}

}  // namespace reprise::server
