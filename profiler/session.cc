#include "profiler/session.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profiler/clock.h"
#include "profiler/connection.h"
#include "profiler/sink.h"

namespace reprise::profiler {
namespace {

void Publish(Agent *agent, Ring *ring) {
  __atomic_store_n(&agent->ring, ring, __ATOMIC_RELEASE);
}

void PushClock(Agent *agent, Ring *ring, uint64_t now_ns) {
  agent->clock_record_ns = now_ns;
  reprise_slot record = NewRecord(REPRISE_RECORD_CLOCK, 0);
  record.body.clock.realtime = ReadClock(CLOCK_REALTIME);
  record.body.clock.boottime = ReadClock(CLOCK_BOOTTIME);
  record.ts_ns = NowNs();
  Push(ring, record);
}

// Sleeps until something arrives, but at most 5 ms: a change of the ring's tail
// wakes nobody.
void SleepOn(int socket, uint64_t ns) {
  pollfd wake = {socket, POLLIN, 0};
  const uint64_t ms = ns / kMillisecond + 1;
  poll(&wake, socket >= 0 ? 1 : 0, ms > 5 ? 5 : static_cast<int>(ms));
}

// Returns to "never started". Names stay: their ids live as long as the
// process.
void EndSession(Agent *agent) {
  Ring *ring = CurrentRing(agent);
  EndDeviceWindow(agent, /*now=*/true);
  Publish(agent, nullptr);
  agent->connection.socket.Close();
  agent->connection.link = Link::kNone;
  agent->sink.file.Close();
  agent->outgoing.snapshot.Close();
  agent->ring_file.Close();
  ForgetGraphs(&agent->graphs);
  SetWindow(agent, 0, 0);
  PauseWindow(agent, false);
  if (ring != nullptr) {
    RetireRing(ring);
    agent->spare_ring = kReuseRings ? ring : nullptr;
  }
}

bool ValidSlots(uint32_t slots) {
  return slots >= REPRISE_RING_MIN_SLOTS && slots <= REPRISE_RING_MAX_SLOTS &&
         (slots & (slots - 1)) == 0;
}

reprise_status Invalid(Agent *agent, const char *why) {
  snprintf(agent->connection.why, sizeof agent->connection.why, "%s", why);
  return REPRISE_EINVAL;
}

reprise_status BeginSession(Agent *agent, const reprise_config &config,
                            uint32_t slots) {
  Connection &connection = agent->connection;
  connection = {};
  agent->outgoing.names_sent = 0;
  __atomic_store_n(&agent->outgoing.names_tried, 0u, __ATOMIC_RELAXED);
  agent->outgoing.capabilities = false;
  agent->sink = {};
  const char *parents_run = g_family.pid == getpid() ? "" : g_family.run_id;
  if (const char *wrong =
          Identify(config.run_id, parents_run, config.labels, &agent->identity))
    return Invalid(agent, wrong);
  reprise_msg_hello &hello = agent->identity.hello;
  hello.slots = slots;

  int ring_fd;
  Ring *ring = CreateRing(slots, agent->spare_ring, &ring_fd, connection.why,
                          sizeof connection.why);
  if (ring == nullptr) return REPRISE_INERT;
  agent->spare_ring = nullptr;
  agent->ring_file.Hold(ring_fd);
  memcpy(g_family.run_id, hello.run_id, sizeof g_family.run_id);
  g_family.pid = getpid();
  if (!agent->tracer_probed) {
    ProbeTracer(config.cupti_path, &agent->tracer);
    agent->tracer_probed = true;
  }

  const char *sink_path = config.sink_path;
  if (sink_path == nullptr || *sink_path == 0)
    sink_path = getenv("REPRISE_SINK");
  if (sink_path != nullptr && *sink_path != 0) {
    char why[sizeof connection.why];
    __atomic_store_n(&ring->own_reader, 1u, __ATOMIC_RELAXED);
    // With a file sink, names are written when records are spilled.
    __atomic_store_n(&agent->outgoing.names_tried, kMaxNames, __ATOMIC_RELAXED);
    Publish(agent, ring);
    if (OpenSink(agent, sink_path, why, sizeof why) != nullptr) {
      EndSession(agent);
      snprintf(connection.why, sizeof connection.why, "%s", why);
      return REPRISE_INERT;
    }
    const BodyPart capabilities = {
        agent->outbox,
        DescribeCapabilities(agent, reinterpret_cast<char *>(agent->outbox),
                             sizeof agent->outbox)};
    WriteSinkEntry(agent, REPRISE_MSG_CAPS, &capabilities, 1);
  } else {
    Publish(agent, ring);
  }
  PushClock(agent, ring, NowNs());
  return REPRISE_OK;
}

}  // namespace

reprise_status StartSession(Agent *agent, const reprise_config &config) {
  if (config.abi != 0 && config.abi != REPRISE_ABI) return REPRISE_EABI;
  const uint32_t slots =
      config.ring_slots != 0 ? config.ring_slots : REPRISE_RING_DEFAULT_SLOTS;
  if (!ValidSlots(slots))
    return Invalid(
        agent, "ring_slots: must be a power of two from 4,096 to 1,048,576");

  if (CurrentRing(agent) == nullptr) {
    const reprise_status begun = BeginSession(agent, config, slots);
    if (begun != REPRISE_OK) return begun;
  }
  Connection &connection = agent->connection;
  if (agent->sink.file.open() || connection.link == Link::kReady)
    return SessionStatus(agent);

  if (connection.link == Link::kNone) {
    // The caller may meanwhile have started a collector, perhaps at another
    // path.
    if (const char *wrong =
            RepriseFindSockets(config.socket_path, &connection.sockets))
      return Invalid(agent, wrong);
    Connect(agent, NowNs());
  }
  return SessionStatus(agent);
}

reprise_status AwaitAnswer(Agent *agent, uint64_t wait_ns) {
  const uint64_t deadline = NowNs() + wait_ns;
  for (;;) {
    const uint64_t now = NowNs();
    int socket;
    {
      Locked guard(&agent->control);
      TakeTurn(agent, now);
      if (agent->connection.link != Link::kGreeting || now >= deadline)
        return SessionStatus(agent);
      socket = agent->connection.socket.fd();
    }
    SleepOn(socket, deadline - now);
  }
}

void StopSession(Agent *agent, uint64_t wait_ns) {
  bool reader;
  {
    Locked guard(&agent->control);
    // The window's last records must be drained too.
    EndDeviceWindow(agent, /*now=*/true);
    reader = agent->sink.file.open() || agent->connection.link != Link::kNone;
  }
  if (reader) Drain(agent, wait_ns, /*wait_for_reader=*/false);

  Locked guard(&agent->control);
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr) return;  // refused or stopped meanwhile
  if (agent->sink.file.open()) {
    const reprise_msg_bye bye = {PushedRecords(ring), DroppedRecords(ring)};
    const BodyPart part = {&bye, sizeof bye};
    WriteSinkEntry(agent, REPRISE_MSG_BYE, &part, 1);
  } else {
    SendBye(agent);
  }
  EndSession(agent);
  agent->connection = {};
}

void TakeTurn(Agent *agent, uint64_t now_ns) {
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr) return;
  ServiceDevice(agent, now_ns);
  PushLosses(ring);
  if (now_ns - agent->clock_record_ns >= kSecond)
    PushClock(agent, ring, now_ns);
  PublishCounters(ring);
  if (ring->own_reader != 0) return SpillSink(agent, kSpillAll, now_ns);

  ServiceConnection(agent, now_ns);
  if (agent->connection.refused) EndSession(agent);
}

reprise_status Drain(Agent *agent, uint64_t wait_ns, bool wait_for_reader) {
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr) return REPRISE_INERT;
  const uint64_t deadline = NowNs() + wait_ns;
  {
    Locked guard(&agent->control);
    FlushDevice(agent);
  }
  uint64_t wanted = PushedRecords(ring);
  bool losses = HasLosses(ring);
  bool closing = true;  // kernels of a window that just ended
  // Send BYE only to a collector that has answered: a session that the driver's
  // injection started may end before that.
  bool greeting = !wait_for_reader;
  for (;;) {
    const uint64_t now = NowNs();
    int socket;
    {
      Locked guard(&agent->control);
      TakeTurn(agent, now);
      if (CurrentRing(agent) != ring) return REPRISE_INERT;
      if (closing && !agent->tracer.closing) {
        closing = false;
        wanted = PushedRecords(ring);
      }
      greeting = greeting && agent->connection.link == Link::kGreeting;
      socket = agent->connection.socket.fd();
      if (!wait_for_reader && socket < 0 && !agent->sink.file.open())
        return REPRISE_PENDING;
    }
    if (losses && !HasLosses(ring)) {
      // A full ring had no room for the LOSS record until now.
      losses = false;
      wanted = PushedRecords(ring);
    }
    if (!losses && !closing && !greeting && CommittedRecords(ring) >= wanted)
      return REPRISE_OK;
    if (now >= deadline) return REPRISE_PENDING;
    SleepOn(socket, deadline - now);
  }
}

reprise_status SessionStatus(Agent *agent) {
  const Connection &connection = agent->connection;
  if (connection.refused) return REPRISE_EREFUSED;
  if (CurrentRing(agent) == nullptr) return REPRISE_INERT;
  const bool sink = agent->sink.file.open();
  if (!sink && connection.link != Link::kReady)
    return connection.was_ready ? REPRISE_DEGRADED : REPRISE_INERT;
  const bool complete = agent->tracer.facts.level == 3 && !sink;
  return complete ? REPRISE_OK : REPRISE_DEGRADED;
}

void DescribeTrouble(Agent *agent, char *why, size_t why_bytes) {
  const char *trouble = agent->connection.why;
  if (*trouble == 0) trouble = agent->sink.why;
  if (*trouble == 0) trouble = agent->tracer.facts.why;
  snprintf(why, why_bytes, "%s", trouble);
}

}  // namespace reprise::profiler
