// SPDX-License-Identifier: Apache-2.0
//
// Planner, Query and Control over gRPC: adapts gRPC's reactors to Calls
// (method.h), so that every RPC has one implementation. Only PutGraph, which
// streams upward, has a reactor of its own.
#pragma once

#include <memory>
#include <vector>

#include "server/service/handlers.h"

namespace grpc {
class Service;
}

namespace reprise::server {

// Returns the services, for one gRPC server. They must outlive it.
std::vector<std::unique_ptr<grpc::Service>> MakeGrpcServices(
    Services& services, const MethodTable& table);

}  // namespace reprise::server
