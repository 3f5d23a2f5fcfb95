// SPDX-License-Identifier: Apache-2.0
//
// Our Status as gRPC's: the codes have the same numbers.
#pragma once

#include <grpcpp/grpcpp.h>

#include "base/status.h"

namespace reprise::server {

inline grpc::Status ToGrpc(const Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

}  // namespace reprise::server
