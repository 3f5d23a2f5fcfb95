// SPDX-License-Identifier: Apache-2.0
//
// POST /reprise.v1.Planner/PutGraph?runId=RUN&graphId=ID stores a step graph
// that is sent whole, as gRPC's PutGraph stores one that is sent in parts.
//
//   application/json    a graph file (reprise.graph/1), or the proto3 JSON of a
//                       StepGraph
//   application/proto   a serialized StepGraph
//
// Both names in the query may be absent. The answer is a GraphRef as JSON:
// {"graphId":"..."}; errors are those of the RPC, as Connect spells them.
//
// A graph may have kMaxGraphUploadBytes. Graphs that are being sent over gRPC
// and over HTTP share Services::sent_graphs; each that was received whole has
// an entry in the audit and counts in the run's quota.
#pragma once

#include <cstdint>
#include <string_view>

#include "server/net/http.h"
#include "server/service/calls/handlers.h"

namespace reprise::server {

inline constexpr std::string_view kPutGraphPath =
    "/reprise.v1.Planner/PutGraph";
inline constexpr uint64_t kMaxGraphUploadBytes = 64 << 20;

class GraphPosts {
 public:
  // The services must outlive it and its uploads.
  explicit GraphPosts(Services& services) : services_(services) {}

  // Begins an upload, given the head of a request to kPutGraphPath. HTTP thread.
  HttpUploadStart Begin(const HttpRequest& head);

 private:
  class Upload;

  Services& services_;
};

}  // namespace reprise::server
