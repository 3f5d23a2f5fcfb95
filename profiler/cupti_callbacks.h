// The callbacks that CUPTI gets: buffers, the clock, and a subscriber that does
// nothing.
//
// CUPTI may call them at any time: on its own threads, inside a flush, in a
// forked child, after the session or the window has ended, while the process
// exits. They take no lock but that of the names, call nothing of CUPTI but its
// iterator and its count of dropped records, and must work with or without an
// agent and a ring.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

void OnBufferRequested(uint8_t **buffer, size_t *size, size_t *max_records);
void OnBufferCompleted(void *context, uint32_t stream, uint8_t *buffer,
                       size_t size, size_t valid);

// Returns CLOCK_MONOTONIC, whether or not a window is open. CUPTI turns the
// device's times into the host's by interpolating between pairs of both, and
// may take a pair at any time: one clock for all of them, or kernels of the
// next window would lie anywhere
// (CuptiTest.KernelsOfLaterWindowsLieWhereTheyRan).
uint64_t CuptiClock();

void OnCuptiCallback(void *userdata, uint32_t domain, uint32_t cbid,
                     const void *data);

// REPRISE_RECORD_CUPTI=folder writes every CUPTI buffer to a file of its own,
// so that what a GPU produced can be decoded again without one. For debugging
// only: it writes to disk on the thread that delivers the buffer.
//
//   folder/cupti-<pid>-<n>.rrc
//   CuptiRecordingHeader   magic, API version, clock, sizes
//   buffer                 `valid` bytes, as CUPTI filled it
//   names                  `names` times {u64 address, u32 n, n bytes}: the
//                          texts that pointers in the buffer refer to

struct Agent;

constexpr uint32_t kCuptiRecordingMagic = 0x31435252u;  // "RRC1"
constexpr uint32_t kMaxRecordings = 256;                // per process

struct CuptiRecordingHeader {
  uint32_t magic, cupti_version, driver_version, clock_id;
  uint64_t valid;
  uint32_t names, pad;
};

void RecordBuffer(Agent *agent, uint8_t *buffer, size_t valid);

// The host buffers that CUPTI fills: at most 32 of 1 MiB, allocated on demand
// and reused. The used part of a returned buffer is zeroed.
//
// Taking and returning a buffer is one atomic operation. Both happen on CUPTI's
// threads, in its callbacks, so they may not take a lock that is also held
// around a call to CUPTI.

constexpr uint32_t kPoolBuffers = 32;
constexpr size_t kPoolBufferBytes = 1u << 20;

struct CuptiPool {
  uint8_t *memory;   // atomic; one mapping for all, touched on use
  uint32_t taken;    // atomic, one bit per buffer
  uint32_t touched;  // atomic, one bit per buffer ever used
};

// Reserves the address range. Returns false if the system refuses.
bool PreparePool(CuptiPool *pool);

// Returns a zeroed buffer, or null if all are taken.
uint8_t *TakeBuffer(CuptiPool *pool);

// Returns the index of a buffer, or -1 if it is not from this pool.
int BufferIndex(const CuptiPool *pool, const uint8_t *buffer);

// Returns a buffer to the pool after zeroing its first `used` bytes.
void GiveBuffer(CuptiPool *pool, int index, size_t used);

inline uint32_t BuffersOut(const CuptiPool *pool) {
  return static_cast<uint32_t>(
      __builtin_popcount(__atomic_load_n(&pool->taken, __ATOMIC_ACQUIRE)));
}
inline uint64_t PoolBytes(const CuptiPool *pool) {
  return kPoolBufferBytes *
         static_cast<uint64_t>(__builtin_popcount(
             __atomic_load_n(&pool->touched, __ATOMIC_RELAXED)));
}

}  // namespace reprise::profiler
