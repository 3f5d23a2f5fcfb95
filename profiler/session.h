// The life of a session: start, the turn that every step takes, stop.
//
//   never started ──Start──▶ ring, no collector ◀──EOF── connected
//        ▲                      │    │   └───────WELCOME───▶ │
//        │                      │    └── or a file sink       │
//        └──────── Stop, REFUSED, fork (in the child) ────────┘
//
// Waiting is done without the control lock, so that a step in another thread
// never waits for a flush.
#pragma once

#include <stdint.h>

#include "profiler/agent.h"

namespace reprise::profiler {

// ---- Under the control lock; none of these waits ----

// Starts a session, or looks for a collector again when there is none yet.
reprise_status StartSession(Agent *agent, const reprise_config &config);

// Losses, counters, clock records, the socket or the sink.
void TakeTurn(Agent *agent, uint64_t now_ns);

// How the session stands, as every call of the ABI reports it.
reprise_status SessionStatus(Agent *agent);

// What is missing, in one sentence; empty when nothing is.
void DescribeTrouble(Agent *agent, char *why, size_t why_bytes);

// ---- Without it; these wait ----

// Takes turns until the collector has answered HELLO, or nobody will.
reprise_status AwaitAnswer(Agent *agent, uint64_t wait_ns);

// Takes turns until the reader has committed everything pushed so far. Without
// `wait_for_reader` a lost connection ends it.
reprise_status Drain(Agent *agent, uint64_t wait_ns, bool wait_for_reader);

// Drains, says BYE and closes.
void StopSession(Agent *agent, uint64_t wait_ns);

}  // namespace reprise::profiler
