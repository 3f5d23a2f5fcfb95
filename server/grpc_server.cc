// SPDX-License-Identifier: Apache-2.0
#include "server/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

namespace reprise::server {

namespace {
constexpr int kMaxMessageBytes = 4 << 20;
// A plan of a large graph is sent whole.
constexpr int kMaxSendBytes = 64 << 20;
}  // namespace

StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  // Once: plugins are global.
  [[maybe_unused]] static const bool reflection = [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  std::unique_ptr<GrpcServer> made(new GrpcServer());
  grpc::ServerBuilder builder;
  made->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxSendBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 256);
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr) return Internal("gRPC did not start");
  // The server itself serves by default; its services are to be named.
  if (auto* health = made->server_->GetHealthCheckService()) {
    for (const char* name :
         {"reprise.v1.Ingest", "reprise.v1.Planner", "reprise.v1.Query"}) {
      health->SetServingStatus(name, true);
    }
  }
  return made;
}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::milliseconds(0)); }

void GrpcServer::Adopt(int listener_fd, int fd) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
      connection;
  connection.listener_fd = listener_fd;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
}

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
