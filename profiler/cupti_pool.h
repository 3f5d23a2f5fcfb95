// The host buffers that CUPTI fills: at most 32 of 1 MiB, allocated on demand
// and reused. The used part of a returned buffer is zeroed.
//
// Taking and returning a buffer is one atomic operation. Both happen on CUPTI's
// threads, in its callbacks, so they may not take a lock that is also held
// around a call to CUPTI.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

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
