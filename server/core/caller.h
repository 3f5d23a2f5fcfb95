// SPDX-License-Identifier: Apache-2.0
//
// Who called, as far as the server can know it.
#pragma once

#include <functional>
#include <string>

#include "server/core/access.h"

namespace reprise::server {

struct Caller {
  // "alice": the name of the token, or of the user whom a proxy names; "uid
  // 1000": a user of this machine, known by the socket; "certificate CN=node7":
  // known by TLS; "token": whoever has the token, from another machine; "server":
  // the server itself. Runs that it sends are its own under this name.
  std::string who;
  // "127.0.0.1:41234", "10.0.0.7:5123 over TLS", "agent socket, pid 4242"; empty
  // for the server itself.
  std::string peer;
  Access access = {};
};

// Finds the caller behind the address of a connection, in gRPC's spelling:
// "ipv4:127.0.0.1:41234", or Call::peer(). Called while the connection is open.
// The name of a token says more than where the call comes from.
using IdentifyCaller =
    std::function<Caller(const std::string& peer, const Access& access)>;

// Metadata of calls within the process: the user and process of the job that
// the collector calls for, as "uid 1000, pid 4242".
inline constexpr char kJobMetadata[] = "reprise-job";

}  // namespace reprise::server
