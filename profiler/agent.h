// The state of the agent inside one process, and what fork does to it.
//
// Everything that describes a session lives in one private mapping with
// MADV_WIPEONFORK: in a forked child, also after a raw clone(), it reads as
// zeros. So all-zero bytes must always mean "never started": no ring, locks
// free, no descriptor open. The ring and the table of names are separate
// mappings with MADV_DONTFORK, to which a wiped child has no pointer left.
//
//   g_agent ──▶ Agent (wiped on fork) ──▶ Ring   (absent in the child)
//                                    └──▶ names  (absent in the child)
//
// What only the child needs (descriptors to close, the run to continue) is kept
// in ordinary memory. The fork handler runs in the child alone and takes no
// lock; there is no handler for `prepare` or for the parent.
//
// Threads: every push reads `ring` with acquire, and nothing else; it is
// published with release. `control` guards all control state, and no push takes
// it. `names.lock` guards only the addition of a name.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/device_tracer.h"
#include "profiler/graphs.h"
#include "profiler/identity.h"
#include "profiler/include/reprise_agent.h"
#include "profiler/include/reprise_sockets.h"
#include "profiler/include/reprise_wire.h"
#include "profiler/message.h"
#include "profiler/names.h"
#include "profiler/open_file.h"
#include "profiler/ring.h"

namespace reprise::profiler {

// State of the control socket.
//
//   kNone ──connect, HELLO──▶ kGreeting ──WELCOME──▶ kReady
//     ▲                           │                    │
//     └──── EOF, error, no answer in 5 s, bad message ─┘
enum class Link : uint32_t { kNone = 0, kGreeting, kReady };

struct Connection {
  // The paths to try, in order. Resolved once by reprise_start, because getenv
  // is not safe while another thread calls setenv.
  RepriseSockets sockets;

  Link link;
  OpenFile socket;
  bool was_ready;  // a collector has answered at least once in this session
  bool refused;    // it refused: the session is over
  uint64_t connected_ns, attempted_ns, delay_ns, next_attempt_ns;
  char why[REPRISE_WHY_BYTES];  // the last problem, in one sentence; else empty
};

// What still has to be sent on the current connection.
struct Outgoing {
  uint32_t names_sent;   // the collector knows the ids up to this one
  uint32_t names_tried;  // a push with a newer id tries to send it; atomic
  bool capabilities;     // changed since they were last sent
  OpenFile snapshot;     // waiting for room in the queue
  uint64_t snapshot_bytes;
};

// The file that records go to when there is no collector.
struct Sink {
  OpenFile file;
  uint64_t bytes;  // of complete entries; a failed write is cut back to here
  uint64_t tail;   // ring position of the next record to write
  uint64_t retry_ns;
  char why[REPRISE_WHY_BYTES];
};

// The open tracing window.
struct Window {
  uint32_t kinds;       // those asked for; 0: closed. Atomic
  uint32_t paused;      // atomic
  uint64_t steps_left;  // 0: until it is ended explicitly
  bool step_begun;      // a step has begun since it was opened
};

struct Agent {
  Ring *ring;  // nullptr: inert. Atomic; see the top of this file.
  Lock control;

  OpenFile ring_file;
  Ring *spare_ring;  // of an earlier session, to be reused
  Identity identity;
  Connection connection;
  Outgoing outgoing;
  Sink sink;
  Window window;
  DeviceTracer tracer;
  Graphs graphs;
  Names names;

  uint64_t clock_record_ns;  // when the last clock record was pushed
  bool tracer_probed;
  uint32_t
      injected;  // atomic: loaded by the CUDA driver; starts at the first step

  MessageBuffer inbox;
  uint8_t outbox[REPRISE_MAX_BODY_BYTES];
};

// The agent of this process, or null if no call of the ABI was ever made.
extern Agent *g_agent;

inline Agent *CurrentAgent() {
  return __atomic_load_n(&g_agent, __ATOMIC_ACQUIRE);
}
inline Ring *CurrentRing(Agent *agent) {
  return agent ? __atomic_load_n(&agent->ring, __ATOMIC_ACQUIRE) : nullptr;
}

// Returns the agent, creating it if needed; null if memory is refused. Installs
// the fork handler on the first call.
Agent *EnsureAgent();

// Returns whether a plan may still come: a collector has answered, or a
// connection has been made and its answer is awaited.
inline bool HasCollector(const Agent *agent) {
  return agent->connection.was_ready ||
         agent->connection.link == Link::kGreeting;
}

// Returns the known kinds in `kinds`, or all kinds if that leaves none. Kinds
// of a newer collector are ignored.
inline uint32_t KnownKinds(uint32_t kinds) {
  constexpr uint32_t kAll =
      REPRISE_KIND_OPS | REPRISE_KIND_ALLOCS | REPRISE_KIND_KERNELS;
  return (kinds & kAll) != 0 ? kinds & kAll : kAll;
}

// Open and close the window, or pause and resume it, and tell the collector.
// Require the control lock. SetWindow returns false if kernels were asked for
// and cannot be traced; the rest of the window is traced.
bool SetWindow(Agent *agent, uint32_t kinds, uint64_t steps);
void PauseWindow(Agent *agent, bool paused);

// The id of this thread and the ops it is inside of, so that an allocation
// knows its op. Of more than kOpDepth nested ops the outermost are kept.
constexpr uint32_t kOpDepth = 16;
struct ThreadState {
  uint32_t id;  // gettid; 0: not yet asked
  uint32_t depth;
  uint32_t pushed;  // one bit per op whose id the device tracer has
  uint64_t ops[kOpDepth];
};
// initial-exec: otherwise __tls_get_addr would make ld.so a NEEDED library.
extern __thread ThreadState t_thread __attribute__((tls_model("initial-exec")));

// Returns gettid() of this thread, cached.
uint32_t ThreadId();

// Returns a record of this thread.
inline reprise_slot NewRecord(uint16_t kind, uint64_t ts_ns) {
  reprise_slot record = {};
  record.kind = kind;
  record.clock_id = REPRISE_CLOCK_MONOTONIC;
  record.thread = ThreadId();
  record.ts_ns = ts_ns;
  return record;
}

// Ends all ops of this thread but the `depth` outermost. Also pops their ids
// from the device tracer, even if its window has ended: its stack of ids
// outlives windows.
void LeaveOpsFrom(Agent *agent, uint32_t depth);

// The run that a forked child joins when it starts a session without naming
// one: its parent's. In ordinary memory, so that it survives the fork.
struct Family {
  char run_id[72];
  int pid;  // the process whose run it is
};
extern Family g_family;

}  // namespace reprise::profiler
