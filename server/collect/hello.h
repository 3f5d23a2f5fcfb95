// SPDX-License-Identifier: Apache-2.0
//
// Checks the first message of an agent, before anything in it is used.
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
  // Add this to a CLOCK_REALTIME time to get CLOCK_MONOTONIC.
  int64_t realtime_to_monotonic_ns = 0;
  // As stated by the agent, except for the uid, which the kernel reports.
  v1::SessionInfo info;
};

// Returns the checked content. INVALID_ARGUMENT, with one sentence for REFUSED.
StatusOr<AgentHello> ParseHello(const Message& message, const Peer& peer);

}  // namespace reprise::server
