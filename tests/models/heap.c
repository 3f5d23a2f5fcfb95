// SPDX-License-Identifier: Apache-2.0
//
// Counts what a process has allocated, from outside of anything it runs: loaded
// with LD_PRELOAD in front of glibc, it sees every malloc, whoever calls it,
// and knows nothing of PyTorch or of Reprise.
//
//   heap_now()         bytes that are allocated now, as glibc rounds them
//   heap_peak()        the most since the last reset
//   heap_reset_peak()  the peak becomes what is allocated now
//
// Memory that a program maps itself (mmap) is not seen. Thread-safe: two
// atomic counters, no lock.
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

static _Atomic int64_t now_bytes;
static _Atomic int64_t peak_bytes;

int64_t heap_now(void) { return atomic_load(&now_bytes); }
int64_t heap_peak(void) { return atomic_load(&peak_bytes); }
void heap_reset_peak(void) {
  atomic_store(&peak_bytes, atomic_load(&now_bytes));
}

static void* Added(void* block) {
  if (block == NULL) return NULL;
  const int64_t size = (int64_t)malloc_usable_size(block);
  const int64_t total = atomic_fetch_add(&now_bytes, size) + size;
  int64_t peak = atomic_load(&peak_bytes);
  while (total > peak &&
         !atomic_compare_exchange_weak(&peak_bytes, &peak, total)) {
  }
  return block;
}

static void Removed(void* block) {
  if (block != NULL)
    atomic_fetch_sub(&now_bytes, (int64_t)malloc_usable_size(block));
}

void* malloc(size_t size) { return Added(__libc_malloc(size)); }

void* calloc(size_t count, size_t size) {
  return Added(__libc_calloc(count, size));
}

void free(void* block) {
  Removed(block);
  __libc_free(block);
}

void* realloc(void* block, size_t size) {
  const int64_t before = block ? (int64_t)malloc_usable_size(block) : 0;
  void* moved = __libc_realloc(block, size);
  // A failed realloc leaves the block as it was.
  if (moved == NULL && size != 0) return NULL;
  atomic_fetch_sub(&now_bytes, before);
  return Added(moved);
}

void* memalign(size_t alignment, size_t size) {
  return Added(__libc_memalign(alignment, size));
}

void* aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0)
    return EINVAL;
  void* block = memalign(alignment, size);
  if (block == NULL) return ENOMEM;
  *out = block;
  return 0;
}
