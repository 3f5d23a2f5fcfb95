// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>

#include "server/core/grpc_peer.h"
#include "server/daemon/daemon_impl.h"

namespace reprise::server {

namespace {
constexpr int kMaxMessageBytes = 4 << 20;
// The plan of a large graph is sent in one message.
constexpr int kMaxSendBytes = 64 << 20;

// Checks the token of every call over a socket, before any service sees it.
class AskForToken final : public grpc::AuthMetadataProcessor {
 public:
  explicit AskForToken(Authenticate authenticate)
      : authenticate_(std::move(authenticate)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*,
                       OutputMetadata* /*consumed*/,
                       OutputMetadata* /*response*/) override {
    // Stays in the metadata: services ask it for the role (AccessOf). What one
    // call may do is no property of its connection.
    return ToGrpc(authenticate_(CredentialsIn(metadata)).status());
  }

 private:
  const Authenticate authenticate_;
};

// Credentials for sockets of this machine without TLS. Only with credentials
// can calls be checked; on the wire they are the same as none.
std::shared_ptr<grpc::ServerCredentials> LocalCredentials(
    grpc_local_connect_type type, const Authenticate& authenticate) {
  auto credentials = grpc::experimental::LocalServerCredentials(type);
  credentials->SetAuthMetadataProcessor(
      std::make_shared<AskForToken>(authenticate));
  return credentials;
}

void Hand(grpc::experimental::ExternalConnectionAcceptor& acceptor, int fd) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
      connection;
  connection.listener_fd = -1;
  connection.fd = fd;
  acceptor.HandleNewConnection(&connection);
}
}  // namespace

StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const std::vector<grpc::Service*>& services,
    const Authenticate& authenticate) {
  grpc::EnableDefaultHealthCheckService(true);
  std::unique_ptr<GrpcServer> made(new GrpcServer());
  grpc::ServerBuilder builder;
  made->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      LocalCredentials(LOCAL_TCP, authenticate));
  made->of_pairs_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      LocalCredentials(UDS, authenticate));
  for (grpc::Service* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxSendBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 256);
  // A connection that is not spoken to does not stay.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  // Nothing that we send is compressed. What is would be unpacked before its
  // size and its sender are known.
  for (const grpc_compression_algorithm algorithm :
       {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr) return Internal("gRPC did not start");
  // The server's own health status defaults to serving; services must be named.
  if (auto* health = made->server_->GetHealthCheckService()) {
    for (const char* name :
         {"reprise.v1.Ingest", "reprise.v1.Planner", "reprise.v1.Query"}) {
      health->SetServingStatus(name, true);
    }
  }
  return made;
}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::milliseconds(0)); }

void GrpcServer::Adopt(int fd) { Hand(*acceptor_, fd); }
void GrpcServer::AdoptPaired(int fd) { Hand(*of_pairs_, fd); }

std::shared_ptr<grpc::Channel> GrpcServer::InProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxSendBytes);
  return server_->InProcessChannel(arguments);
}

void GrpcServer::StopServing() {
  if (auto* health = server_->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(false);
  }
}

void GrpcServer::Shutdown(std::chrono::milliseconds grace) {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
  server_.reset();
}

}  // namespace reprise::server
