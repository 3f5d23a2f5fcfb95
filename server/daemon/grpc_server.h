// SPDX-License-Identifier: Apache-2.0
//
// The gRPC server, for sockets that the listener accepted and for in-process
// calls.
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
  // Starts a server with these services and the health service. Services must
  // outlive it. Calls over a socket, including health checks, need the secret's
  // token; in-process calls do not.
  static StatusOr<std::unique_ptr<GrpcServer>> Start(
      const std::vector<grpc::Service*>& services, const Secret& secret);
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

}  // namespace reprise::server
