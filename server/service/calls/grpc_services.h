// SPDX-License-Identifier: Apache-2.0
//
// The methods of the table over gRPC: adapts gRPC's reactors to Calls (method.h),
// so that every RPC has one implementation. Only PutGraph, which streams upward,
// has a reactor of its own.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <set>

#include "reprise/v1/planner.pb.h"
#include "server/service/calls/handlers.h"

namespace reprise::server {

// Returns all of it as one service, for one gRPC server. The service must outlive
// the server, and the table, which is complete, the service.
std::unique_ptr<grpc::Service> MakeGrpcService(Services& services,
                                               const MethodTable& table);

class PutGraphCall;

// Receives step graphs over gRPC, in parts of at most 1 MiB. Together they hold
// at most Services::sent_graphs has. If a part does not fit, its call ends with
// RESOURCE_EXHAUSTED, and calls that have sent nothing for half a minute are
// ended to make room for later ones. Each graph that was received whole is
// logged.
class GraphUploads {
 public:
  explicit GraphUploads(Services& services) : services_(services) {}

  grpc::ServerReadReactor<v1::GraphPart>* Begin(
      grpc::CallbackServerContext* context, v1::GraphRef* response);

 private:
  friend class PutGraphCall;

  bool TakeRoom(uint64_t bytes);
  void Remove(PutGraphCall* call, uint64_t bytes);

  Services& services_;
  // Recursive, because cancelling a call may end it on the same thread.
  std::recursive_mutex mutex_;
  std::set<PutGraphCall*> calls_;
};

}  // namespace reprise::server
