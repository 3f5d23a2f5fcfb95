// The control socket: connects to a collector, and reconnects when it is lost.
//
// After a connection is lost, the agent tries the same paths again, at most
// once a second, with backoff. HELLO passes the same ring and session, so
// nothing is lost while the ring has room. After every reconnection the names,
// the capabilities and the newest graph are sent again. All calls require the
// control lock; none of them blocks.
#pragma once

#include <stdint.h>

#include "profiler/agent.h"

namespace reprise::profiler {

// Tries every path of `connection.sockets` once. Returns true if one connected
// and HELLO was sent.
bool Connect(Agent *agent, uint64_t now_ns);

// Receives messages, reconnects when it is due, and sends what is waiting.
void ServiceConnection(Agent *agent, uint64_t now_ns);

// ---- outgoing.cc; these return false if the connection is broken ----

// Sends capabilities, names, graphs and a snapshot, as far as the queue takes
// them.
bool SendWaiting(Agent *agent);

// Sends names only: after HELLO, and for the first push that uses a new name. A
// push leaves it to the next step to deal with a broken connection.
bool SendNames(Agent *agent);

void SendBye(Agent *agent);

// Writes the body of CAPS, one "name=value reason" per line; returns its
// length.
size_t DescribeCapabilities(const Agent *agent, char *text, size_t capacity);

}  // namespace reprise::profiler
