// The life of a session: start, the turn that every step takes, and stop.
//
//   never started ──Start──▶ ring, no collector ◀──EOF── connected
//        ▲                      │    │   └───────WELCOME───▶ │
//        │                      │    └── or a file sink       │
//        └──────── Stop, REFUSED, fork (in the child) ────────┘
//
// No call waits while it holds the control lock, so that a step in another
// thread never waits for a flush.
#pragma once

#include <stdint.h>

#include "profiler/agent.h"

namespace reprise::profiler {

// ---- These require the control lock; none of them waits ----

// Starts a session; if it has no collector yet, looks for one again.
reprise_status StartSession(Agent *agent, const reprise_config &config);

// One turn: reports losses, updates counters, pushes a clock record if due, and
// services the socket or the sink.
void TakeTurn(Agent *agent, uint64_t now_ns);

// Returns the state of the session, as every call of the ABI reports it.
reprise_status SessionStatus(Agent *agent);

// Writes what is missing as one sentence; empty if nothing is.
void DescribeTrouble(Agent *agent, char *why, size_t why_bytes);

// ---- These take the control lock themselves, and wait ----

// Takes turns until the collector has answered HELLO or is known not to.
reprise_status AwaitAnswer(Agent *agent, uint64_t wait_ns);

// Takes turns until the reader has committed everything pushed so far. Unless
// `wait_for_reader`, a lost connection ends the wait.
reprise_status Drain(Agent *agent, uint64_t wait_ns, bool wait_for_reader);

// Drains the ring, sends BYE and closes.
void StopSession(Agent *agent, uint64_t wait_ns);

}  // namespace reprise::profiler
