// SPDX-License-Identifier: Apache-2.0
//
// Step graphs that are being sent over gRPC, in parts of at most 1 MiB. All of
// them together hold at most kMaxSentBytes; where there is no room for a part,
// its call ends with RESOURCE_EXHAUSTED, and calls that have sent nothing for
// half a minute make way for those that come after.
#pragma once

#include <grpcpp/grpcpp.h>

#include <mutex>
#include <set>

#include "reprise/v1/planner.pb.h"
#include "server/byte_share.h"
#include "server/service/handlers.h"

namespace reprise::server {

class PutGraphCall;

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
  // A cancelled call may end on the thread that cancels it.
  std::recursive_mutex mutex_;
  std::set<PutGraphCall*> calls_;
};

}  // namespace reprise::server
