// SPDX-License-Identifier: Apache-2.0
//
// The Unix SOCK_SEQPACKET socket between agents and the collector: listening,
// and one bounded, checked message at a time (reprise_wire.h has the layout).
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

// Listens on `path` with mode 0600. Makes its folder, 0700, where it does not
// exist, and removes a stale socket file there: the caller holds the daemon's
// lock.
//   INVALID_ARGUMENT     empty, or too long for a socket address;
//   PERMISSION_DENIED    the folder belongs to somebody else, or is no folder;
//   FAILED_PRECONDITION  something answers there already, or a file that is
//                        no socket is in the way.
StatusOr<Fd> ListenForAgents(const std::string& path);

// Who connected, as the kernel knows it. The pid is 0 where the client lives
// in a process namespace we cannot see.
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

// Takes the next message. INVALID_ARGUMENT: it breaks the protocol, and the
// connection is not worth keeping.
StatusOr<Received> Receive(const Fd& socket, Message& message);

// Sends one message, with `fd` unless it is -1. UNAVAILABLE: the peer's queue
// is full, try later; any other error: the connection is gone.
Status Send(const Fd& socket, uint16_t type, uint32_t request,
            std::string_view body, int fd = -1);

}  // namespace reprise::server
