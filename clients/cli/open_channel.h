// SPDX-License-Identifier: Apache-2.0
//
// A gRPC channel to a server: with TLS where it has it, and the token on every
// call.
#pragma once

#include <grpcpp/channel.h>

#include <memory>

#include "base/status.h"
#include "clients/cli/server_client.h"

namespace reprise::cli {

// Nothing is connected yet. Errors of files that cannot be read.
StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Endpoint& endpoint);

}  // namespace reprise::cli
