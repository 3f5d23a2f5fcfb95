// The life of a session: start, the turn that every step takes, stop.
//
//   never started ──Start──▶ ring, no collector ◀──EOF── connected
//        ▲                      │    │   └───────WELCOME───▶ │
//        │                      │    └── or a file sink       │
//        └──────── Stop, REFUSED, fork (in the child) ────────┘
//
// All functions are called under the control lock.
#pragma once

#include <stdint.h>

#include "profiler/agent.h"

namespace reprise::profiler {

// Starts a session, or looks for a collector again when there is none yet.
// Waits up to `wait_ns` for the collector's answer.
reprise_status StartSession(Agent *agent, const reprise_config &config,
                            uint64_t wait_ns);

// Says BYE after at most `wait_ns` of draining.
void StopSession(Agent *agent, uint64_t wait_ns);

// Losses, counters, clock records, the socket or the sink.
void TakeTurn(Agent *agent, uint64_t now_ns);

// Takes turns until the reader has everything pushed so far.
reprise_status Drain(Agent *agent, uint64_t wait_ns);

// How the session stands, as every call of the ABI reports it.
reprise_status SessionStatus(Agent *agent);

// What is missing, in one sentence; empty when nothing is.
void DescribeTrouble(Agent *agent, char *why, size_t why_bytes);

}  // namespace reprise::profiler
