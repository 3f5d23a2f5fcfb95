#include "profiler/cupti_pool.h"

#include <string.h>
#include <sys/mman.h>

namespace reprise::profiler {

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
