// SPDX-License-Identifier: Apache-2.0
//
// How much heap a process holds, counted below everything that it loads: LD_PRELOAD puts these in
// the place of malloc and its kin, and of mmap for memory without a file. It knows nothing of torch.
//
//   heap_live()  heap_peak()  heap_reset_peak()      bytes, from Python by ctypes
//
// Sizes are those that glibc has given (malloc_usable_size). What glibc maps for itself does not
// come through here.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static _Atomic int64_t live, peak;

static void add(int64_t bytes) {
  const int64_t now = atomic_fetch_add(&live, bytes) + bytes;
  int64_t highest = atomic_load(&peak);
  while (now > highest && !atomic_compare_exchange_weak(&peak, &highest, now)) {
  }
}

static void *made(void *p) {
  if (p != NULL) add((int64_t)malloc_usable_size(p));
  return p;
}

int64_t heap_live(void) { return atomic_load(&live); }
int64_t heap_peak(void) { return atomic_load(&peak); }
void heap_reset_peak(void) { atomic_store(&peak, atomic_load(&live)); }

void *malloc(size_t n) { return made(__libc_malloc(n)); }
void *calloc(size_t n, size_t m) { return made(__libc_calloc(n, m)); }
void *memalign(size_t a, size_t n) { return made(__libc_memalign(a, n)); }
void *aligned_alloc(size_t a, size_t n) { return made(__libc_memalign(a, n)); }

void free(void *p) {
  if (p != NULL) add(-(int64_t)malloc_usable_size(p));
  __libc_free(p);
}

void *realloc(void *p, size_t n) {
  const int64_t before = p == NULL ? 0 : (int64_t)malloc_usable_size(p);
  void *const now = __libc_realloc(p, n);
  if (now != NULL)
    add((int64_t)malloc_usable_size(now) - before);
  else if (n == 0)
    add(-before);
  return now;
}

int posix_memalign(void **p, size_t a, size_t n) {
  void *const q = made(__libc_memalign(a, n));
  if (q == NULL) return ENOMEM;
  *p = q;
  return 0;
}

// What was mapped and is counted.
enum { kMost = 4096 };
static struct {
  void *at;
  size_t bytes;
} mapped[kMost];
static atomic_flag busy = ATOMIC_FLAG_INIT;

// Puts `to` where `from` is.
static size_t swap(void *from, void *to, size_t bytes) {
  size_t found = 0;
  while (atomic_flag_test_and_set(&busy)) {
  }
  for (int i = 0; i < kMost; ++i) {
    if (mapped[i].at != from) continue;
    found = to == NULL ? mapped[i].bytes : bytes;
    mapped[i].at = to;
    mapped[i].bytes = bytes;
    break;
  }
  atomic_flag_clear(&busy);
  return found;
}

void *mmap(void *at, size_t n, int rights, int flags, int file, off_t from) {
  static void *(*real)(void *, size_t, int, int, int, off_t);
  if (real == NULL) real = dlsym(RTLD_NEXT, "mmap");
  void *const p = real(at, n, rights, flags, file, from);
  // Room that is only reserved, and files, are no heap.
  if (p != MAP_FAILED && (flags & MAP_ANONYMOUS) && !(flags & MAP_NORESERVE) &&
      (rights & PROT_WRITE))
    add((int64_t)swap(NULL, p, n));
  return p;
}

int munmap(void *at, size_t n) {
  static int (*real)(void *, size_t);
  if (real == NULL) real = dlsym(RTLD_NEXT, "munmap");
  add(-(int64_t)swap(at, NULL, 0));
  return real(at, n);
}
