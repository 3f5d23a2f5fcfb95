// SPDX-License-Identifier: Apache-2.0
//
// The gRPC server on sockets that the listener accepted, and in process.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <vector>

#include "base/status.h"
#include "server/net/secret.h"

namespace reprise::server {

class GrpcServer {
 public:
  // Health is added. Services must outlive the server. Calls over a socket need
  // the secret's token, also those for health; those in process need nothing.
  static StatusOr<std::unique_ptr<GrpcServer>> Start(
      const std::vector<grpc::Service*>& services, const Secret& secret);
  ~GrpcServer();

  // Takes over a connected, non-blocking socket whose first bytes are the
  // HTTP/2 preface: one over loopback, or one of a pair (tls_front.h).
  void Adopt(int fd);
  void AdoptPaired(int fd);

  // To this server, without a socket; the same limits hold.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Health checks answer NOT_SERVING from now on.
  void StopServing();

  // Calls in progress may end by themselves for this long, then they are cut.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  GrpcServer() = default;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> of_pairs_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace reprise::server
