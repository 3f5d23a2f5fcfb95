// SPDX-License-Identifier: Apache-2.0
//
// Addresses to listen on: "127.0.0.1:7070", "localhost:0", "[::1]:7070".
//
// Hosts are numeric, so that the address does not depend on a resolver. An
// address beyond loopback needs TLS and a token (daemon.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/core/caller.h"

namespace reprise::server {

struct Address {
  std::string host;  // numeric: "127.0.0.1" or "::1"
  bool v6 = false;
  uint16_t port = 0;  // 0: any free port

  // "127.0.0.1:7070", "[::1]:7070".
  std::string Text() const;
};

// Parses an address. INVALID_ARGUMENT, naming `flag`.
StatusOr<Address> ParseAddress(std::string_view flag, std::string_view text);

// Returns whether only this machine can reach the address.
bool IsLoopback(const Address& address);

// Returns whether the Host header of an HTTP request names this machine's
// loopback, with any port: "localhost:7070", "127.0.0.1", "[::1]:80". Protects
// against pages that point a name of their own at 127.0.0.1 (DNS rebinding).
bool IsLoopbackHost(std::string_view host_header);

// Who is at the other end of a connection.
//
//   TCP over loopback   the user of the client's socket, from /proc/net/tcp
//   TLS                 the address, and the subject of the client's certificate
//   TCP from elsewhere  only the address
//
// What cannot be found out is "token": every call needs the token, so its
// holder called.

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
using FindClient =
    std::function<std::optional<Caller>(const std::string& name)>;
IdentifyCaller MakeIdentify(std::vector<uint16_t> ports, FindClient over_tls);

}  // namespace reprise::server
