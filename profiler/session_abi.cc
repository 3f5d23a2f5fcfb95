// The session calls of the C ABI: start, step, flush, windows.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "profiler/abi_struct.h"
#include "profiler/agent.h"
#include "profiler/clock.h"
#include "profiler/include/reprise_sink.h"
#include "profiler/open_file.h"
#include "profiler/session.h"
#include "profiler/sink.h"

using namespace reprise::profiler;

namespace {

constexpr uint64_t kStartWait = kSecond;
constexpr uint64_t kStopWait = kSecond;

// Counts the step that ends because another begins. A step in which the window
// was opened, by a call that found the command between two steps or in the
// middle of one, did not begin within the window and is not counted.
void CountWindowStep(Agent *agent) {
  Window &window = agent->window;
  if (window.kinds == 0 || window.steps_left == 0 || !window.step_begun) return;
  if (--window.steps_left == 0) SetWindow(agent, 0, 0);
}

// Stores the new step. The previous step's position is cleared first, so a job
// that dies in this function appears to be between two steps.
void MarkPlace(Ring *ring, uint64_t step, uint64_t now_ns) {
  reprise_place *place = &ring->header->place;
  uint64_t *const words[] = {&place->op, &place->phase, &place->graph_id,
                             &place->plan_id};
  for (uint64_t *word : words)
    __atomic_store_n(word, uint64_t{0}, __ATOMIC_RELEASE);
  __atomic_store_n(&place->step_ns, now_ns, __ATOMIC_RELEASE);
  __atomic_store_n(&place->step, step, __ATOMIC_RELEASE);
}

void PushStep(Ring *ring, uint64_t step, uint64_t now_ns) {
  MarkPlace(ring, step, now_ns);
  reprise_slot record = NewRecord(REPRISE_RECORD_STEP, now_ns);
  record.body.step.step = step;
  Push(ring, record);
}

}  // namespace

extern "C" {

REPRISE_EXPORT uint32_t reprise_abi_version(void) { return REPRISE_ABI; }

REPRISE_EXPORT reprise_status reprise_start(const reprise_config *config) {
  KeepErrno keep;
  reprise_config copy = {};
  if (config != nullptr && !ReadStruct(config, &copy)) return REPRISE_EINVAL;
  Agent *agent = EnsureAgent();
  if (agent == nullptr) return REPRISE_INERT;
  {
    Locked guard(&agent->control);
    // From now on the program decides when a session begins.
    __atomic_store_n(&agent->injected, 0u, __ATOMIC_RELAXED);
    // A raw clone() runs no fork handler, so the parent's thread id may still
    // be here.
    if (CurrentRing(agent) == nullptr) t_thread = {};
    const reprise_status status = StartSession(agent, copy);
    if (agent->connection.link != Link::kGreeting) return status;
  }
  return AwaitAnswer(agent, kStartWait);
}

REPRISE_EXPORT reprise_status reprise_stop(void) {
  KeepErrno keep;
  Agent *agent = CurrentAgent();
  if (CurrentRing(agent) == nullptr) return REPRISE_INERT;
  StopSession(agent, kStopWait);
  return REPRISE_OK;
}

REPRISE_EXPORT void reprise_step(uint64_t step) {
  KeepErrno keep;
  Agent *agent = CurrentAgent();
  if (agent == nullptr) return;
  Ring *ring = CurrentRing(agent);
  const uint64_t now = NowNs();
  LeaveOpsFrom(agent, 0);  // a step is inside no op, even after an exception
  if (ring != nullptr) PushStep(ring, step, now);

  // Another thread holds the lock and does the work of this turn.
  if (!agent->control.TryTake()) return;
  if (ring == nullptr &&
      __atomic_exchange_n(&agent->injected, 0u, __ATOMIC_RELAXED) != 0) {
    StartSession(agent, reprise_config{});
    ring = CurrentRing(agent);
    if (ring != nullptr) PushStep(ring, step, now);
  }
  CountWindowStep(agent);
  TakeTurn(agent, now);
  // Afterwards: this turn may open the window, for the step that begins here.
  agent->window.step_begun = true;
  agent->control.Release();
}

REPRISE_EXPORT reprise_status reprise_flush(uint32_t timeout_ms) {
  KeepErrno keep;
  Agent *agent = CurrentAgent();
  if (CurrentRing(agent) == nullptr) return REPRISE_INERT;
  return Drain(agent, timeout_ms * kMillisecond, /*wait_for_reader=*/true);
}

REPRISE_EXPORT reprise_status reprise_capabilities(reprise_caps *caps) {
  KeepErrno keep;
  reprise_caps found = {};
  Agent *agent = CurrentAgent();
  if (agent == nullptr) {
    snprintf(found.why, sizeof found.why, "reprise_start was not called");
    return WriteStruct(found, caps) ? REPRISE_INERT : REPRISE_EINVAL;
  }
  Locked guard(&agent->control);
  const DeviceTracer &tracer = agent->tracer;
  found.cupti = tracer.facts.level;
  found.cupti_version = tracer.facts.cupti_version;
  found.driver_version = tracer.facts.driver_version;
  found.untimed = __atomic_load_n(&tracer.decoder.untimed, __ATOMIC_RELAXED);
  found.cupti_dropped = __atomic_load_n(&tracer.dropped, __ATOMIC_RELAXED);
  found.cupti_device_bytes = tracer.facts.device_bytes;
  memcpy(found.holder, tracer.facts.holder, sizeof found.holder);
  DescribeTrouble(agent, found.why, sizeof found.why);
  if (Ring *ring = CurrentRing(agent)) {
    found.pushed = PushedRecords(ring);
    found.dropped = DroppedRecords(ring);
  }
  return WriteStruct(found, caps) ? SessionStatus(agent) : REPRISE_EINVAL;
}

REPRISE_EXPORT reprise_status reprise_window_begin(uint32_t kinds) {
  KeepErrno keep;
  Agent *agent = CurrentAgent();
  if (CurrentRing(agent) == nullptr) return REPRISE_INERT;
  if (kinds != 0 && KnownKinds(kinds) != kinds) return REPRISE_EINVAL;
  kinds = KnownKinds(kinds);
  Locked guard(&agent->control);
  return SetWindow(agent, kinds, 0) ? REPRISE_OK : REPRISE_DEGRADED;
}

REPRISE_EXPORT reprise_status reprise_window_end(void) {
  KeepErrno keep;
  Agent *agent = CurrentAgent();
  if (CurrentRing(agent) == nullptr) return REPRISE_INERT;
  Locked guard(&agent->control);
  SetWindow(agent, 0, 0);
  return REPRISE_OK;
}

REPRISE_EXPORT uint32_t reprise_window_kinds(void) {
  Agent *agent = CurrentAgent();
  if (CurrentRing(agent) == nullptr) return 0;
  return __atomic_load_n(&agent->window.paused, __ATOMIC_RELAXED)
             ? 0
             : __atomic_load_n(&agent->window.kinds, __ATOMIC_RELAXED);
}

REPRISE_EXPORT reprise_status reprise_pause(void) {
  KeepErrno keep;
  Agent *agent = CurrentAgent();
  if (CurrentRing(agent) == nullptr) return REPRISE_INERT;
  Locked guard(&agent->control);
  PauseWindow(agent, true);
  return REPRISE_OK;
}

REPRISE_EXPORT reprise_status reprise_resume(void) {
  KeepErrno keep;
  Agent *agent = CurrentAgent();
  if (CurrentRing(agent) == nullptr) return REPRISE_INERT;
  Locked guard(&agent->control);
  PauseWindow(agent, false);
  return REPRISE_OK;
}

REPRISE_EXPORT uint32_t reprise_intern(const char *utf8, size_t n) {
  KeepErrno keep;
  Agent *agent = EnsureAgent();
  return agent == nullptr ? 0 : Intern(&agent->names, utf8, n);
}

REPRISE_EXPORT reprise_status reprise_snapshot(const void *json, size_t n) {
  KeepErrno keep;
  Agent *agent = CurrentAgent();
  if (CurrentRing(agent) == nullptr) return REPRISE_INERT;
  if (json == nullptr || n == 0) return REPRISE_EINVAL;
  if (n > REPRISE_MAX_SNAPSHOT_BYTES) return REPRISE_ETOOBIG;
  {
    Locked guard(&agent->control);
    if (agent->sink.file.open()) {
      const BodyPart part = {json, n};
      return WriteSinkEntry(agent, REPRISE_SINK_SNAPSHOT, &part, 1)
                 ? REPRISE_OK
                 : REPRISE_DEGRADED;
    }
    if (!HasCollector(agent)) return REPRISE_INERT;
  }
  // May copy up to 1 GiB, so other threads must not wait for it.
  const int fd = CreateSealedCopy("reprise-snapshot", json, n);
  if (fd < 0) return REPRISE_DEGRADED;
  Locked guard(&agent->control);
  if (CurrentRing(agent) == nullptr) {  // stopped meanwhile
    close(fd);
    return REPRISE_INERT;
  }
  agent->outgoing.snapshot.Hold(fd);
  agent->outgoing.snapshot_bytes = n;
  TakeTurn(agent, NowNs());
  return agent->outgoing.snapshot.open() ? REPRISE_PENDING : REPRISE_OK;
}

// The CUDA driver calls this when it loads the library, also in launchers and
// shells. So a session starts only with the first step. Always returns 1:
// training must start in any case.
REPRISE_EXPORT int InitializeInjection(void) {
  KeepErrno keep;
  if (Agent *agent = EnsureAgent()) {
    if (CurrentRing(agent) == nullptr) {
      PrepareDevice(&agent->tracer);
      __atomic_store_n(&agent->injected, 1u, __ATOMIC_RELAXED);
    }
  }
  return 1;
}

}  // extern "C"
