// The host buffers that CUPTI fills: at most 32 of 1 MiB, made when they are
// first asked for, recycled, zeroed up to what was used.
//
// Taking and giving back is one atomic word: both happen on CUPTI's threads, in
// its callbacks, where no lock may be held that is also held around a call of
// CUPTI's.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

constexpr uint32_t kPoolBuffers = 32;
constexpr size_t kPoolBufferBytes = 1u << 20;

struct CuptiPool {
  uint8_t *memory;   // atomic; one mapping for all, touched as it is used
  uint32_t taken;    // atomic, a bit per buffer
  uint32_t touched;  // atomic, a bit per buffer that was ever used
};

// Reserves addresses. False: the system refuses.
bool PreparePool(CuptiPool *pool);

// A zeroed buffer, or nullptr when all are taken.
uint8_t *TakeBuffer(CuptiPool *pool);

// The number of the buffer, or -1: it is not of this pool.
int BufferIndex(const CuptiPool *pool, const uint8_t *buffer);

// Back for others; the first `used` bytes are zeroed.
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
