// SPDX-License-Identifier: Apache-2.0
//
// The first message of an agent, checked: nothing of it is used before.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"
#include "server/collect/control_socket.h"

namespace reprise::server {

struct AgentHello {
  std::string session_id;
  std::string run_id;
  uint32_t slots = 0;
  // To be added to a CLOCK_REALTIME stamp to make it CLOCK_MONOTONIC.
  int64_t realtime_to_monotonic_ns = 0;
  // As told by the agent, but for the uid, which the kernel told.
  v1::SessionInfo info;
};

// INVALID_ARGUMENT: one sentence for REFUSED that says what is wrong.
StatusOr<AgentHello> ParseHello(const Message& message, const Peer& peer);

}  // namespace reprise::server
