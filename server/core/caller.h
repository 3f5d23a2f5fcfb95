// SPDX-License-Identifier: Apache-2.0
//
// Who called, as far as the server can know it. The words are those of
// AuditEntry in admin.proto.
#pragma once

#include <functional>
#include <string>

#include "server/core/access.h"

namespace reprise::server {

struct Caller {
  // "alice", "uid 1000", "certificate CN=node7", "token", "server". Runs that it
  // sends are its own under this name.
  std::string who;
  std::string peer;  // "127.0.0.1:41234"; empty for the server itself
  Access access = {};
};

// Finds the caller behind the address of a connection, in gRPC's spelling:
// "ipv4:127.0.0.1:41234", or Call::peer(). Called while the connection is open.
using IdentifyCaller = std::function<Caller(const std::string& peer)>;

// The name of a token says more than where the call comes from.
inline Caller WithAccess(Caller caller, const Access& access) {
  if (!access.name.empty()) caller.who = access.name;
  caller.access = access;
  return caller;
}

// Metadata of calls within the process: the user and process of the job that
// the collector calls for, as "uid 1000, pid 4242".
inline constexpr char kJobMetadata[] = "reprise-job";

}  // namespace reprise::server
