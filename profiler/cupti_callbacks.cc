
#include "profiler/cupti_callbacks.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "profiler/agent.h"
#include "profiler/clock.h"

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

bool Write(int fd, const void *bytes, size_t n) {
  const uint8_t *next = static_cast<const uint8_t *>(bytes);
  while (n > 0) {
    const ssize_t wrote = write(fd, next, n);
    if (wrote <= 0) return false;
    next += wrote;
    n -= static_cast<size_t>(wrote);
  }
  return true;
}

// Calls `use` with every kernel's name that differs from the previous one.
template <typename Use>
void ForNames(const DeviceTracer &tracer, uint8_t *buffer, size_t valid,
              const Use &use) {
  const char *before = nullptr;
  for (uint8_t *record = nullptr;
       tracer.calls.ActivityGetNextRecord(buffer, valid, &record) == 0;) {
    if (cupti::Field<uint32_t>(record, 0) != cupti::kConcurrentKernel) continue;
    const char *name =
        cupti::Field<const char *>(record, cupti::kKernelLayout.name);
    if (name != nullptr && name != before) use(name);
    before = name;
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

void RecordBuffer(Agent *agent, uint8_t *buffer, size_t valid) {
  DeviceTracer &tracer = agent->tracer;
  const uint32_t number =
      __atomic_fetch_add(&tracer.recorded, 1u, __ATOMIC_RELAXED);
  if (number >= kMaxRecordings) return;
  char path[sizeof tracer.recording + 48];
  snprintf(path, sizeof path, "%s/cupti-%d-%u.rrc", tracer.recording,
           static_cast<int>(getpid()), number);
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return;
  CuptiRecordingHeader header = {kCuptiRecordingMagic,
                                 tracer.facts.cupti_version,
                                 tracer.facts.driver_version,
                                 tracer.clock_id,
                                 valid,
                                 0,
                                 0};
  ForNames(tracer, buffer, valid, [&](const char *) { ++header.names; });
  bool good = Write(fd, &header, sizeof header) && Write(fd, buffer, valid);
  ForNames(tracer, buffer, valid, [&](const char *name) {
    const uint64_t address = reinterpret_cast<uint64_t>(name);
    const uint32_t n = static_cast<uint32_t>(strlen(name));
    good = good && Write(fd, &address, sizeof address) &&
           Write(fd, &n, sizeof n) && Write(fd, name, n);
  });
  close(fd);
  if (!good) unlink(path);
}

bool PreparePool(CuptiPool *pool) {
  if (pool->memory != nullptr) return true;
  constexpr size_t kBytes = kPoolBuffers * kPoolBufferBytes;
  void *memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  // Inherited by a forked child: its copy of CUPTI still writes to the buffer
  // it holds (AForkInsideAWindowIsInertAndMayStillFlush).
  __atomic_store_n(&pool->memory, static_cast<uint8_t *>(memory),
                   __ATOMIC_RELEASE);
  return true;
}

uint8_t *TakeBuffer(CuptiPool *pool) {
  uint8_t *memory = __atomic_load_n(&pool->memory, __ATOMIC_ACQUIRE);
  if (memory == nullptr) return nullptr;
  uint32_t taken = __atomic_load_n(&pool->taken, __ATOMIC_RELAXED);
  while (taken != UINT32_MAX) {
    const int index = __builtin_ctz(~taken);
    const uint32_t bit = 1u << index;
    if (__atomic_compare_exchange_n(&pool->taken, &taken, taken | bit, true,
                                    __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      __atomic_fetch_or(&pool->touched, bit, __ATOMIC_RELAXED);
      return memory + static_cast<size_t>(index) * kPoolBufferBytes;
    }
  }
  return nullptr;
}

int BufferIndex(const CuptiPool *pool, const uint8_t *buffer) {
  const uint8_t *memory = __atomic_load_n(&pool->memory, __ATOMIC_ACQUIRE);
  if (memory == nullptr || buffer < memory) return -1;
  const size_t offset = static_cast<size_t>(buffer - memory);
  if (offset % kPoolBufferBytes != 0 ||
      offset >= kPoolBuffers * kPoolBufferBytes)
    return -1;
  return static_cast<int>(offset / kPoolBufferBytes);
}

void GiveBuffer(CuptiPool *pool, int index, size_t used) {
  uint8_t *buffer =
      pool->memory + static_cast<size_t>(index) * kPoolBufferBytes;
  memset(buffer, 0, used < kPoolBufferBytes ? used : kPoolBufferBytes);
  __atomic_fetch_and(&pool->taken, ~(1u << index), __ATOMIC_RELEASE);
}

}  // namespace reprise::profiler
