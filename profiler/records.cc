// The calls of the C ABI that push a record. They take no lock and do not
// allocate.
#include "profiler/abi_struct.h"
#include "profiler/agent.h"
#include "profiler/clock.h"
#include "profiler/connection.h"
#include "profiler/sink.h"

namespace reprise::profiler {
namespace {

// Sends new names ahead of the first record that uses them. If another thread
// holds the control lock or the queue is full, they are sent later.
void AnnounceName(Agent *agent, uint32_t id) {
  if (__builtin_expect(
          id <= __atomic_load_n(&agent->outgoing.names_tried, __ATOMIC_RELAXED),
          1))
    return;
  if (!agent->control.TryTake()) return;
  SendNames(agent);
  agent->control.Release();
}

void PushRecord(Agent *agent, Ring *ring, const reprise_slot &record) {
  if (__builtin_expect(!Push(ring, record), 1)) return;
  if (!agent->control.TryTake()) return;
  SpillSink(agent, kSpillFromPush, record.ts_ns);
  agent->control.Release();
}

uint64_t CurrentOp() {
  const uint32_t depth = t_thread.depth;
  return depth == 0 ? 0 : t_thread.ops[depth - 1];
}

void EnterOp(Agent *agent, uint64_t op) {
  if (t_thread.depth >= kOpDepth) return;
  const uint32_t index = t_thread.depth++;
  t_thread.ops[index] = op;
  if (__builtin_expect(
          __atomic_load_n(&agent->tracer.op_links, __ATOMIC_ACQUIRE) != 0, 0) &&
      PushDeviceOp(agent, op))
    t_thread.pushed |= 1u << index;
}

// Ends an op, and any op inside it that an exception left open.
void LeaveOp(Agent *agent, uint64_t op) {
  for (uint32_t i = t_thread.depth; i-- > 0;) {
    if (t_thread.ops[i] == op) return LeaveOpsFrom(agent, i);
  }
}

}  // namespace
}  // namespace reprise::profiler

using namespace reprise::profiler;

extern "C" {

REPRISE_EXPORT void reprise_op_begin(uint64_t op, uint32_t name,
                                     uint32_t shapes, uint64_t parent,
                                     int64_t seq_nr, uint64_t fwd_thread) {
  Agent *agent = CurrentAgent();
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr) return;
  EnterOp(agent, op);
  AnnounceName(agent, name > shapes ? name : shapes);
  reprise_slot record = NewRecord(REPRISE_RECORD_OP_BEGIN, NowNs());
  record.body.op = {op, parent, seq_nr, fwd_thread, name, shapes};
  PushRecord(agent, ring, record);
}

REPRISE_EXPORT void reprise_op_end(uint64_t op) {
  Agent *agent = CurrentAgent();
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr) return;
  LeaveOp(agent, op);
  reprise_slot record = NewRecord(REPRISE_RECORD_OP_END, NowNs());
  record.body.op.op = op;
  PushRecord(agent, ring, record);
}

REPRISE_EXPORT void reprise_at(uint64_t op_plus_one) {
  Ring *ring = CurrentRing(CurrentAgent());
  if (ring == nullptr) return;
  __atomic_store_n(&ring->header->place.op, op_plus_one, __ATOMIC_RELAXED);
}

REPRISE_EXPORT void reprise_phase(uint32_t phase) {
  Ring *ring = CurrentRing(CurrentAgent());
  if (ring == nullptr) return;
  __atomic_store_n(&ring->header->place.phase, uint64_t{phase},
                   __ATOMIC_RELAXED);
}

// The graph is stored after the op is cleared, so a process that dies in
// between leaves no op rather than an op of another graph.
REPRISE_EXPORT void reprise_step_under(uint64_t graph_id, uint64_t plan_id) {
  Ring *ring = CurrentRing(CurrentAgent());
  if (ring == nullptr) return;
  reprise_place *place = &ring->header->place;
  __atomic_store_n(&place->op, uint64_t{0}, __ATOMIC_RELAXED);
  __atomic_store_n(&place->graph_id, graph_id, __ATOMIC_RELEASE);
  __atomic_store_n(&place->plan_id, plan_id, __ATOMIC_RELEASE);
}

REPRISE_EXPORT void reprise_alloc(uint64_t ptr, int64_t bytes, int32_t device,
                                  uint64_t stream, uint32_t what,
                                  uint64_t ts_or_0) {
  Agent *agent = CurrentAgent();
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr) return;
  reprise_slot record =
      NewRecord(REPRISE_RECORD_ALLOC, ts_or_0 != 0 ? ts_or_0 : NowNs());
  record.body.alloc = {ptr, bytes, stream, CurrentOp(), device, what};
  record.flags = static_cast<uint8_t>(
      __atomic_load_n(&ring->header->place.phase, __ATOMIC_RELAXED) & 3);
  PushRecord(agent, ring, record);
}

REPRISE_EXPORT void reprise_oom(int32_t device, uint64_t asked, uint64_t total,
                                uint64_t free_bytes) {
  Agent *agent = CurrentAgent();
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr) return;
  reprise_slot record = NewRecord(REPRISE_RECORD_OOM, NowNs());
  record.body.oom.asked = asked;
  record.body.oom.total = total;
  record.body.oom.free_bytes = free_bytes;
  record.body.oom.device = device;
  PushRecord(agent, ring, record);
}

REPRISE_EXPORT void reprise_plan_state(uint64_t plan_id, uint32_t state,
                                       uint32_t why_name) {
  Agent *agent = CurrentAgent();
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr) return;
  AnnounceName(agent, why_name);
  reprise_slot record = NewRecord(REPRISE_RECORD_PLAN_STATE, NowNs());
  record.body.plan_state.plan_id = plan_id;
  record.body.plan_state.state = state;
  record.body.plan_state.why_name = why_name;
  PushRecord(agent, ring, record);
}

REPRISE_EXPORT void reprise_plan_applied(uint64_t plan_id, uint64_t own_ns,
                                         uint64_t peak_bytes) {
  Agent *agent = CurrentAgent();
  Ring *ring = CurrentRing(agent);
  if (ring == nullptr) return;
  reprise_slot record = NewRecord(REPRISE_RECORD_PLAN_STATE, NowNs());
  record.body.plan_state.plan_id = plan_id;
  record.body.plan_state.state = REPRISE_PLAN_APPLIED;
  record.body.plan_state.own_ns = own_ns;
  record.body.plan_state.peak_bytes = peak_bytes;
  PushRecord(agent, ring, record);
}

REPRISE_EXPORT void reprise_step_done(const reprise_step_report *report) {
  Agent *agent = CurrentAgent();
  Ring *ring = CurrentRing(agent);
  reprise_step_report r;
  if (ring == nullptr || !ReadStruct(report, &r)) return;
  const uint64_t now = NowNs();
  reprise_slot done = NewRecord(REPRISE_RECORD_STEP_DONE, now);
  done.body.step_done = {r.step,       r.plan_id, r.step_ns,
                         r.peak_bytes, r.flags,   r.mismatches};
  reprise_slot memory = NewRecord(REPRISE_RECORD_STEP_MEM, now);
  memory.body.step_mem = {r.step,    r.reserved_bytes, r.device_bytes,
                          r.plan_id, r.recomputed,     0};
  PushRecord(agent, ring, done);
  PushRecord(agent, ring, memory);
}

REPRISE_EXPORT void reprise_verify(const reprise_verify_report *report) {
  Agent *agent = CurrentAgent();
  Ring *ring = CurrentRing(agent);
  reprise_verify_report r;
  if (ring == nullptr || !ReadStruct(report, &r)) return;
  AnnounceName(agent, r.first_name);
  reprise_slot record = NewRecord(REPRISE_RECORD_VERIFY, NowNs());
  record.body.verify = {r.step,      r.plan_id,    r.flags, r.checked,
                        r.differing, r.first_name, 0};
  PushRecord(agent, ring, record);
}

}  // extern "C"
