// SPDX-License-Identifier: Apache-2.0
//
// How a call ended, as our Status: a sentence that names the server.
#pragma once

#include <grpcpp/support/status.h>

#include "base/status.h"
#include "clients/cli/server_client.h"

namespace reprise::cli {

Status FromGrpc(const grpc::Status& status, const Endpoint& endpoint);

}  // namespace reprise::cli
