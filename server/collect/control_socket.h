// SPDX-License-Identifier: Apache-2.0
//
// The Unix SOCK_SEQPACKET socket between agents and the collector: listens, and
// receives one bounded, checked message at a time (layout: reprise_wire.h).
// Never blocks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/collect/memfd.h"

namespace reprise::server {

// Listens on `path` with mode 0600. Creates its folder with mode 0700 if needed
// and removes a stale socket file: the caller must hold the daemon's lock.
//   INVALID_ARGUMENT     empty, or too long for a socket address;
//   PERMISSION_DENIED    the folder is not ours alone, or is no folder;
//   FAILED_PRECONDITION  something answers there already, or a file that is not
//                        a socket is in the way.
StatusOr<Fd> ListenForAgents(const std::string& path);

// The peer's identity according to the kernel. The pid is 0 if the client is in
// a pid namespace that we cannot see.
struct Peer {
  uid_t uid = 0;
  pid_t pid = 0;
};
StatusOr<Peer> PeerOf(const Fd& socket);

struct Message {
  uint16_t type = 0;
  uint32_t request = 0;
  std::string body;
  std::vector<Fd> fds;
};

enum class Received { kMessage, kNothing, kClosed };

// Receives the next message. INVALID_ARGUMENT: it violates the protocol, and
// the connection should be closed.
StatusOr<Received> Receive(const Fd& socket, Message& message);

// Sends one message, with `fd` unless it is -1. UNAVAILABLE: the peer's queue
// is full, retry later; any other error: the connection is gone.
Status Send(const Fd& socket, uint16_t type, uint32_t request,
            std::string_view body, int fd = -1);

}  // namespace reprise::server
