// SPDX-License-Identifier: Apache-2.0
//
// Addresses to listen on: "127.0.0.1:7070", "localhost:0", "[::1]:7070".
//
// Hosts are numeric, so that the address does not depend on a resolver. An
// address beyond loopback needs TLS and a token (daemon.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

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

}  // namespace reprise::server
