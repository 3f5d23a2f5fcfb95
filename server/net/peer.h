// SPDX-License-Identifier: Apache-2.0
//
// Who is at the other end of a connection.
//
//   TCP over loopback   the user of the client's socket, from /proc/net/tcp
//   TLS                 the address, and the subject of the client's certificate
//   TCP from elsewhere  only the address
//
// What cannot be found out is "token": every call needs the token, so its
// holder called.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/core/caller.h"

namespace reprise::server {

// The other end of a connected socket, in gRPC's spelling:
// "ipv4:127.0.0.1:41234", "ipv6:[::1]:41234", "unix-abstract:00042"; empty if
// there is none.
std::string PeerOf(int fd);

// Returns the user who owns the socket of this machine at `address` (as PeerOf
// spells it) that is connected to one of `ports`; nothing if there is none.
std::optional<uint32_t> OwnerOf(const std::string& address,
                                const std::vector<uint16_t>& ports);

// Finds callers. `over_tls` gives the client behind a TLS front's socket pair
// (TlsFront::PeerBehind).
IdentifyCaller MakeIdentify(
    std::vector<uint16_t> ports,
    std::function<std::optional<Caller>(const std::string& name)> over_tls);

}  // namespace reprise::server
