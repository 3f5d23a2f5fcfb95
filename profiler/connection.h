// The control socket: finding a collector, keeping it, finding it again.
//
// A lost connection is replaced by one to whoever answers at the same places,
// at most once a second, with backoff; HELLO passes the same ring and session,
// so nothing is lost while the ring has room. On every new connection names,
// capabilities and the newest graph are sent again. All calls under the
// control lock; none of them waits.
#pragma once

#include <stdint.h>

#include "profiler/agent.h"

namespace reprise::profiler {

// Tries every place of `connection.sockets` once. True: connected, HELLO is sent.
bool Connect(Agent *agent, uint64_t now_ns);

// Receives, reconnects when it is time, sends what is waiting.
void ServiceConnection(Agent *agent, uint64_t now_ns);

// ---- outgoing.cc; false: the connection is broken ----

// Capabilities, names, graphs, a snapshot, as far as the queue takes them.
bool SendWaiting(Agent *agent);

// Names only: behind HELLO, and for the first push that uses a new one. A push
// leaves a broken connection to the next step.
bool SendNames(Agent *agent);

void SendBye(Agent *agent);

// "name=value reason" per line: the body of CAPS.
size_t DescribeCapabilities(const Agent *agent, char *text, size_t capacity);

}  // namespace reprise::profiler
