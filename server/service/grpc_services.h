// SPDX-License-Identifier: Apache-2.0
//
// Planner, Query and Control over gRPC: turns gRPC's reactors into Calls
// (method.h), so that every RPC has one implementation. Only PutGraph, which
// streams upward, is a reactor of its own.
#pragma once

#include <memory>
#include <vector>

#include "server/service/handlers.h"

namespace grpc {
class Service;
}

namespace reprise::server {

// To be registered with one gRPC server; they must outlive it.
std::vector<std::unique_ptr<grpc::Service>> MakeGrpcServices(
    Services& services, const MethodTable& table);

}  // namespace reprise::server
