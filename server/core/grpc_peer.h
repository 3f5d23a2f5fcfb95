// SPDX-License-Identifier: Apache-2.0
//
// Who calls over gRPC, in the spelling that IdentifyCaller takes.
#pragma once

#include <grpc/grpc_security_constants.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/str_cat.h"
#include "server/core/caller.h"

namespace reprise::server {

// Returns whether the server itself calls, within the process. Calls over
// sockets have passed its local credentials, whose type is in the context. The
// peer tells nothing: gRPC 1.51 calls it "unknown" within the process.
inline bool IsWithinProcess(const grpc::CallbackServerContext& context) {
  const auto types = context.auth_context()->FindPropertyValues(
      GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  return std::find(types.begin(), types.end(), "local") == types.end();
}

// Only the server itself can call within the process, so it may say for whom.
inline std::string PeerOfCall(const grpc::CallbackServerContext& context) {
  if (!IsWithinProcess(context)) return context.peer();
  const auto& metadata = context.client_metadata();
  const auto job = metadata.find(kJobMetadata);
  return job == metadata.end()
             ? "inproc"
             : StrCat("inproc:",
                      std::string(job->second.data(), job->second.size()));
}

// What identifies the caller in the metadata of a call.
inline Credentials CredentialsIn(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  const auto text = [](const grpc::string_ref& ref) {
    return std::string_view(ref.data(), ref.size());
  };
  Credentials given;
  const auto token = metadata.find("authorization");
  if (token != metadata.end()) given.authorization = text(token->second);
  const auto [first, last] = metadata.equal_range("x-forwarded-user");
  for (auto it = first; it != last; ++it) {
    given.forwarded_users.push_back(text(it->second));
  }
  return given;
}

// Calls over sockets were authenticated before any service saw them.
inline Access AccessOf(const grpc::CallbackServerContext& context,
                       const Authenticate& authenticate) {
  if (IsWithinProcess(context)) return kOwnAccess;
  StatusOr<Access> found =
      authenticate(CredentialsIn(context.client_metadata()));
  return found.ok() ? *std::move(found) : Access{};
}

// Our Status as gRPC's: the codes have the same numbers.
inline grpc::Status ToGrpc(const Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

}  // namespace reprise::server
