// SPDX-License-Identifier: Apache-2.0
//
// Opens a gRPC channel to a server: with TLS if the server has it, and the
// token on every call.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <memory>

#include "base/status.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {

// Does not connect yet. Errors: a certificate file cannot be read.
StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Endpoint& endpoint);

// Converts the result of a call to our Status, with a sentence that names the
// server.
Status FromGrpc(const grpc::Status& status, const Endpoint& endpoint);

}  // namespace reprise::cli
