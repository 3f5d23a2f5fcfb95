// SPDX-License-Identifier: Apache-2.0
//
// The methods of the table over gRPC: adapts gRPC's reactors to Calls (method.h),
// so that every RPC has one implementation. Only PutGraph, which streams upward,
// has a reactor of its own.
#pragma once

#include <memory>

#include "server/service/calls/handlers.h"

namespace grpc {
class Service;
}

namespace reprise::server {

// Returns all of it as one service, for one gRPC server. The service must outlive
// the server, and the table, which is complete, the service.
std::unique_ptr<grpc::Service> MakeGrpcService(Services& services,
                                               const MethodTable& table);

}  // namespace reprise::server
