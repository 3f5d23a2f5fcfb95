// Texts that records refer to by id: names of ops and parameters, and shapes.
//
// Ids count up from 1, so a single number says which names the collector has
// not received. The table only grows and lives as long as the process: ids stay
// valid across reprise_stop and reprise_start. A forked child starts with an
// empty table of its own.
//
//   one mapping, whose pages are touched as it fills:
//   | hash table of ids | offset and length per id | texts |
#pragma once

#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace reprise::profiler {

// A mutex of four zero bytes, so that a wiped page reads as unlocked. Needs no
// libpthread on older C libraries. The three states are Drepper's ("Futexes are
// tricky").
struct Lock {
  uint32_t word;  // 0 free, 1 taken, 2 taken with waiters

  bool TryTake() {
    uint32_t free = 0;
    return __atomic_compare_exchange_n(&word, &free, 1u, false,
                                       __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
  }
  void Take() {
    if (TryTake()) return;
    while (__atomic_exchange_n(&word, 2u, __ATOMIC_ACQUIRE) != 0)
      syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 2, nullptr, nullptr, 0);
  }
  void Release() {
    if (__atomic_exchange_n(&word, 0u, __ATOMIC_RELEASE) == 2)
      syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
};

// Holds a lock for its scope.
class Locked {
 public:
  explicit Locked(Lock *lock) : lock_(lock) { lock_->Take(); }
  ~Locked() { lock_->Release(); }
  Locked(const Locked &) = delete;
  Locked &operator=(const Locked &) = delete;

 private:
  Lock *lock_;
};

constexpr uint32_t kMaxNames = 1u << 16;
constexpr uint32_t kNameTableBytes = 8u << 20;  // of text
constexpr uint32_t kMaxNameBytes = 4096;        // longer ones are truncated

struct NameText {
  uint32_t offset, bytes;
};

struct Names {
  Lock lock;
  uint32_t count;  // atomic; everything of ids <= count is immutable
  uint32_t text_bytes;
  uint32_t *buckets;
  NameText *texts;  // by id - 1
  char *text;
};

// Returns the id of a text, always the same for the same text; 0 if the table
// is full.
uint32_t Intern(Names *names, const char *utf8, size_t n);

// Returns whether `id` is the id of `text`.
bool IsText(const Names *names, uint32_t id, const char *text);

inline uint32_t NameCount(const Names *names) {
  return __atomic_load_n(&names->count, __ATOMIC_ACQUIRE);
}

// Packs {u32 id, u32 n, n bytes, padded to 4} for the ids after `after` into
// `body`, as far as they fit. Returns the bytes used; `*last` is the last id
// packed.
size_t PackNames(const Names *names, uint32_t after, uint8_t *body,
                 size_t capacity, uint32_t *last);

// FNV-1a, 64 bits: the id of a graph and the hash of a name.

constexpr uint64_t kFnvStart = 0xcbf29ce484222325u;

inline uint64_t Fnv1a64(const void *bytes, size_t n,
                        uint64_t hash = kFnvStart) {
  const uint8_t *next = static_cast<const uint8_t *>(bytes);
  for (size_t i = 0; i < n; ++i) hash = (hash ^ next[i]) * 0x100000001b3u;
  return hash;
}

}  // namespace reprise::profiler
