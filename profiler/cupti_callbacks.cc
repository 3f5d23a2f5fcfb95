#include "profiler/cupti_callbacks.h"

#include "profiler/agent.h"
#include "profiler/clock.h"
#include "profiler/cupti_recording.h"

namespace reprise::profiler {
namespace {

// A buffer for a library version that may not be refused one; its content is
// discarded. Static, so that a forked child, which has no pool, has it too.
alignas(8) uint8_t g_scratch[1u << 16];

void CountDrops(DeviceTracer *tracer, uint64_t count) {
  uint64_t none = 0;
  const uint64_t now = NowNs();
  if (__atomic_load_n(&tracer->unreported, __ATOMIC_ACQUIRE) == 0)
    __atomic_store_n(&tracer->unreported_since_ns, now, __ATOMIC_RELAXED);
  else
    __atomic_compare_exchange_n(&tracer->unreported_since_ns, &none, now, false,
                                __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  __atomic_fetch_add(&tracer->dropped, count, __ATOMIC_RELAXED);
  __atomic_fetch_add(&tracer->unreported, count, __ATOMIC_RELEASE);
}

void ReadBuffer(Agent *agent, uint8_t *buffer, size_t valid) {
  DeviceTracer *tracer = &agent->tracer;
  Ring *ring = CurrentRing(agent);
  const DecodeContext context = {
      &tracer->decoder, &agent->names, NowNs(), tracer->clock_id,
      tracer->facts.cupti_version >= cupti::kOverheadDataApi};
  const uint64_t realtime_to_monotonic = NowNs() - ReadClock(CLOCK_REALTIME);
  // Bounds the loop in case the library's iterator never ends: no record is
  // smaller than 8 bytes.
  size_t turns = valid / 8 + 1;
  for (uint8_t *record = nullptr;
       turns > 0 && tracer->calls.ActivityGetNextRecord(
                        buffer, valid, &record) == cupti::kSuccess;
       --turns) {
    reprise_slot slot;
    if (DecodeActivity(record, context, &slot) != Decoded::kRecord ||
        ring == nullptr)
      continue;
    // The library refused our clock: convert with the current difference of the
    // two clocks, as the realtime clock may have been set since the session
    // began.
    if (slot.clock_id == REPRISE_CLOCK_REALTIME) {
      slot.clock_id = REPRISE_CLOCK_MONOTONIC;
      slot.ts_ns += realtime_to_monotonic;
    }
    Push(ring, slot);
  }
}

}  // namespace

void OnBufferRequested(uint8_t **buffer, size_t *size, size_t *max_records) {
  *max_records = 0;
  Agent *agent = CurrentAgent();
  DeviceTracer *tracer = agent != nullptr ? &agent->tracer : nullptr;
  *buffer = tracer != nullptr ? TakeBuffer(&tracer->pool) : nullptr;
  *size = kPoolBufferBytes;
  if (*buffer != nullptr) return;
  if (tracer != nullptr && tracer->loaded) {
    CountDrops(tracer, 1);  // at least
    if (tracer->facts.cupti_version >= cupti::kMayRefuseBufferApi) {
      *size = 0;
      return;
    }
  }
  *buffer = g_scratch;
  *size = sizeof g_scratch;
}

void OnBufferCompleted(void *context, uint32_t stream, uint8_t *buffer, size_t,
                       size_t valid) {
  Agent *agent = CurrentAgent();
  if (agent == nullptr || buffer == nullptr || buffer == g_scratch) return;
  DeviceTracer *tracer = &agent->tracer;
  const int index = BufferIndex(&tracer->pool, buffer);
  // In a forked child, or a buffer of another client that was still in use.
  if (index < 0 || !tracer->loaded) return;
  if (valid > kPoolBufferBytes) valid = kPoolBufferBytes;
  if (tracer->recording[0] != 0) RecordBuffer(agent, buffer, valid);
  ReadBuffer(agent, buffer, valid);
  GiveBuffer(&tracer->pool, index, valid);

  size_t dropped = 0;
  if (tracer->calls.ActivityGetNumDroppedRecords != nullptr &&
      tracer->calls.ActivityGetNumDroppedRecords(context, stream, &dropped) ==
          cupti::kSuccess &&
      dropped > 0)
    CountDrops(tracer, dropped);
}

uint64_t CuptiClock() { return ReadClock(CLOCK_MONOTONIC); }

void OnCuptiCallback(void *, uint32_t, uint32_t, const void *) {}

}  // namespace reprise::profiler
