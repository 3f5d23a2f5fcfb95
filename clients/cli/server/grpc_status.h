// SPDX-License-Identifier: Apache-2.0
//
// Converts the result of a call to our Status, with a sentence that names the
// server.
#pragma once

#include <grpcpp/support/status.h>

#include "base/status.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {

Status FromGrpc(const grpc::Status& status, const Endpoint& endpoint);

}  // namespace reprise::cli
