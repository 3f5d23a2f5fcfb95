// SPDX-License-Identifier: Apache-2.0
//
// Who owns the TCP sockets of this machine, from the kernel's tables
// (/proc/net/tcp, tcp6). Every user can listen on a port of loopback: before a
// secret is sent there, its receiver has to be known.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise {

struct TcpSocket {
  // Addresses and ports as the tables have them: "0100007F:A112".
  std::string local;
  std::string remote;
  bool listens = false;
  bool is_connected = false;
  uint32_t uid = 0;
};

// Writes "127.0.0.1:41234" or "[::1]:41234" as the tables do; empty if it is no
// such address.
std::string AsInTcpTable(std::string_view address);

// Calls `take` with each socket of one table until it returns false. Returns
// whether the table can be read. O(sockets of the machine).
bool EachTcpSocket(bool v6, const std::function<bool(const TcpSocket&)>& take);

// Returns OK if every socket that a connection to `target` ("127.0.0.1:7070",
// "[::1]:7070", "localhost:7070") may reach belongs to one of these users.
// PERMISSION_DENIED: somebody else listens there, or the kernel does not say
// who does; UNAVAILABLE: nobody listens.
Status CheckListener(const std::string& target,
                     std::span<const uint32_t> trusted);

}  // namespace reprise
