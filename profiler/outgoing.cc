// Sends what waits for the collector as far as the queue takes it; the rest
// follows with a later turn.
#include <stdio.h>

#include "profiler/connection.h"

namespace reprise::profiler {
namespace {

unsigned long long Number(uint64_t value) { return value; }
unsigned long long Count(const uint64_t *counter) {
  return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

// Returns false if nothing more can be sent this turn.
bool SendCapabilities(Agent *agent, Sent *sent) {
  if (!agent->outgoing.capabilities) return true;
  const BodyPart part = {
      agent->outbox,
      DescribeCapabilities(agent, reinterpret_cast<char *>(agent->outbox),
                           sizeof agent->outbox)};
  *sent = SendMessage(agent->connection.socket.fd(), REPRISE_MSG_CAPS, &part, 1,
                      -1);
  agent->outgoing.capabilities = *sent != Sent::kYes;
  return *sent == Sent::kYes;
}

bool SendNewNames(Agent *agent, Sent *sent) {
  Outgoing &outgoing = agent->outgoing;
  __atomic_store_n(&outgoing.names_tried, NameCount(&agent->names),
                   __ATOMIC_RELAXED);
  while (outgoing.names_sent < NameCount(&agent->names)) {
    uint32_t last;
    const size_t n = PackNames(&agent->names, outgoing.names_sent,
                               agent->outbox, sizeof agent->outbox, &last);
    const BodyPart part = {agent->outbox, n};
    *sent = SendMessage(agent->connection.socket.fd(), REPRISE_MSG_DEFS, &part,
                        1, -1);
    if (*sent != Sent::kYes) return false;
    outgoing.names_sent = last;
  }
  return true;
}

bool SendGraphs(Agent *agent, Sent *sent) {
  for (Graph &graph : agent->graphs.entries) {
    if (graph.id == 0 || !graph.unsent) continue;
    const reprise_msg_graph &message = graph.message;
    const BodyPart parts[] = {
        {&message, MessageBytes(message)},
        {graph.texts, message.budget_bytes + message.capabilities_bytes}};
    *sent = SendMessage(agent->connection.socket.fd(), REPRISE_MSG_GRAPH, parts,
                        2, graph.json.fd());
    if (*sent != Sent::kYes) return false;
    MarkSent(&agent->graphs, &graph);
  }
  return true;
}

bool SendSnapshot(Agent *agent, Sent *sent) {
  Outgoing &outgoing = agent->outgoing;
  if (!outgoing.snapshot.open()) return true;
  const reprise_msg_bulk message = {outgoing.snapshot_bytes};
  const BodyPart part = {&message, sizeof message};
  *sent = SendMessage(agent->connection.socket.fd(), REPRISE_MSG_SNAPSHOT,
                      &part, 1, outgoing.snapshot.fd());
  if (*sent == Sent::kYes) outgoing.snapshot.Close();
  return *sent == Sent::kYes;
}

}  // namespace

bool SendWaiting(Agent *agent) {
  Sent sent = Sent::kYes;
  if (SendCapabilities(agent, &sent) && SendNewNames(agent, &sent) &&
      SendGraphs(agent, &sent))
    SendSnapshot(agent, &sent);
  return sent != Sent::kBroken;
}

bool SendNames(Agent *agent) {
  Sent sent = Sent::kYes;
  if (agent->connection.socket.open()) {
    SendNewNames(agent, &sent);
  } else {
    __atomic_store_n(&agent->outgoing.names_tried, NameCount(&agent->names),
                     __ATOMIC_RELAXED);
  }
  return sent != Sent::kBroken;
}

void SendBye(Agent *agent) {
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr || agent->connection.link != Link::kReady) return;
  const reprise_msg_bye bye = {PushedRecords(ring), DroppedRecords(ring)};
  const BodyPart part = {&bye, sizeof bye};
  SendMessage(agent->connection.socket.fd(), REPRISE_MSG_BYE, &part, 1, -1);
}

size_t DescribeCapabilities(const Agent *agent, char *text, size_t capacity) {
  const DeviceTracer &tracer = agent->tracer;
  const TracerFacts &facts = tracer.facts;
  const Window &window = agent->window;
  const int n = snprintf(
      text, capacity,
      "ring=%u\n"
      "clock=host\n"
      "cupti=%u %s\n"
      "cupti_version=%u\n"
      "cupti_holder=%s\n"
      "cupti_host_bytes=%llu\n"
      "cupti_device_bytes=%llu\n"
      "cupti_dropped=%llu\n"
      "cupti_untimed=%llu\n"
      "cupti_unknown=%llu\n"
      "driver=%u\n"
      "window=%s\n",
      agent->identity.hello.slots, facts.level, facts.why, facts.cupti_version,
      facts.holder, Number(PoolBytes(&tracer.pool)), Number(facts.device_bytes),
      Count(&tracer.dropped), Count(&tracer.decoder.untimed),
      Count(&tracer.decoder.unknown), facts.driver_version,
      window.paused ? "paused" : (window.kinds != 0 ? "open" : "closed"));
  return n < 0 ? 0 : static_cast<size_t>(n);
}

}  // namespace reprise::profiler
