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
// What only the child needs (descriptors to close, the run to stay in) is kept
// in ordinary memory. The fork handler runs in the child alone and takes no
// lock; there is none for prepare or the parent.
//
// Threads. `ring` is published with release and read with acquire by every
// push; nothing else is read on that path. All control state is guarded by
// `control`, which no push takes; `names.lock` guards only adding a name.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/device_tracer.h"
#include "profiler/graphs.h"
#include "profiler/identity.h"
#include "profiler/include/reprise_agent.h"
#include "profiler/include/reprise_sockets.h"
#include "profiler/include/reprise_wire.h"
#include "profiler/lock.h"
#include "profiler/message.h"
#include "profiler/names.h"
#include "profiler/open_file.h"
#include "profiler/ring.h"

namespace reprise::profiler {

// Where the control socket stands.
//
//   kNone ──connect, HELLO──▶ kGreeting ──WELCOME──▶ kReady
//     ▲                           │                    │
//     └──── EOF, error, no answer in 5 s, bad message ─┘
enum class Link : uint32_t { kNone = 0, kGreeting, kReady };

struct Connection {
  // Where to look, in order; resolved once by reprise_start, as getenv is not
  // safe beside a setenv in another thread.
  RepriseSockets sockets;

  Link link;
  OpenFile socket;
  bool was_ready;  // a collector has answered at least once in this session
  bool refused;    // it said no: the session is over
  uint64_t connected_ns, attempted_ns, delay_ns, next_attempt_ns;
  char why[192];  // the last trouble, one sentence; empty when there is none
};

// What still has to go out on the current connection.
struct Outgoing {
  uint32_t names_sent;   // ids up to this one are known to the collector
  uint32_t names_tried;  // a push with a newer id asks for another attempt;
                         // atomic
  bool capabilities;     // changed since they were sent
  OpenFile snapshot;     // waiting for room in the queue
  uint64_t snapshot_bytes;
};

// The file sink, when there is one instead of a collector.
struct Sink {
  OpenFile file;
  uint64_t bytes;  // of complete entries; a failed write is cut back to here
  uint64_t tail;   // ring position of the next record to write
  uint64_t retry_ns;
  char why[192];
};

struct Window {
  uint32_t kinds;       // asked for; 0: closed. Atomic
  uint32_t paused;      // atomic
  uint64_t steps_left;  // 0: until it is ended
};

struct Agent {
  Ring *ring;  // nullptr: inert. Atomic; see the top of this file.
  Lock control;

  OpenFile ring_file;
  Ring *spare_ring;  // of an earlier session, to be mapped over
  Identity identity;
  Connection connection;
  Outgoing outgoing;
  Sink sink;
  Window window;
  DeviceTracer tracer;
  Graphs graphs;
  Names names;

  uint64_t clock_record_ns;  // when the last one was pushed
  bool tracer_probed;
  uint32_t
      injected;  // atomic: loaded by the CUDA driver; starts at the first step

  MessageBuffer inbox;
  uint8_t outbox[REPRISE_MAX_BODY_BYTES];
};

// The agent of this process, or nullptr if nothing was ever called.
extern Agent *g_agent;

inline Agent *CurrentAgent() {
  return __atomic_load_n(&g_agent, __ATOMIC_ACQUIRE);
}
inline Ring *CurrentRing(Agent *agent) {
  return agent ? __atomic_load_n(&agent->ring, __ATOMIC_ACQUIRE) : nullptr;
}

// Creates the agent if there is none; nullptr when memory is refused. Installs
// the fork handler the first time.
Agent *EnsureAgent();

// A plan can be hoped for: a collector answered once, or is about to.
inline bool HasCollector(const Agent *agent) {
  return agent->connection.was_ready ||
         agent->connection.link == Link::kGreeting;
}

// 0 asks for everything; kinds of a newer collector are ignored.
inline uint32_t KnownKinds(uint32_t kinds) {
  constexpr uint32_t kAll =
      REPRISE_KIND_OPS | REPRISE_KIND_ALLOCS | REPRISE_KIND_KERNELS;
  return (kinds & kAll) != 0 ? kinds & kAll : kAll;
}

// Both tell the collector. Under the control lock. False: kernels were asked
// for and are not traced; the rest of the window goes on.
bool SetWindow(Agent *agent, uint32_t kinds, uint64_t steps);
void PauseWindow(Agent *agent, bool paused);

// Which thread this is and which ops it is inside of, so that an allocation
// knows its op. Beyond kOpDepth nested ops the outermost ones win.
constexpr uint32_t kOpDepth = 16;
struct ThreadState {
  uint32_t id;  // gettid, 0: not asked yet
  uint32_t depth;
  uint32_t pushed;  // a bit per op whose id the device's tracer has
  uint64_t ops[kOpDepth];
};
// initial-exec: a call of __tls_get_addr would make ld.so a NEEDED library.
extern __thread ThreadState t_thread __attribute__((tls_model("initial-exec")));

uint32_t ThreadId();

// This thread is inside its `depth` outermost ops only. What the device's
// tracer was told is taken back, also when its window has ended since: its
// stack of ids outlives windows.
void LeaveOpsFrom(Agent *agent, uint32_t depth);

// A forked child that starts a session without naming a run stays in the
// parent's. Ordinary memory, so that it survives the fork.
struct Family {
  char run_id[72];
  int pid;  // whose run it is
};
extern Family g_family;

}  // namespace reprise::profiler
