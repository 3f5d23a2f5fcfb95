// SPDX-License-Identifier: Apache-2.0
//
// Who calls over gRPC, in the spelling that IdentifyCaller takes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "base/str_cat.h"
#include "server/caller.h"

namespace reprise::server {

// Only the server itself can call within the process, so it may say for whom.
inline std::string PeerOfCall(const grpc::CallbackServerContext& context) {
  std::string peer = context.peer();
  if (!peer.starts_with("inproc")) return peer;
  const auto& metadata = context.client_metadata();
  const auto job = metadata.find(kJobMetadata);
  return job == metadata.end()
             ? "inproc"
             : StrCat("inproc:",
                      std::string(job->second.data(), job->second.size()));
}

}  // namespace reprise::server
