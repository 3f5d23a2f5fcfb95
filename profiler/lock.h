// A mutex of four zero bytes, so that a wiped page reads as unlocked. Needs no
// libpthread on older C libraries. The three states are Drepper's ("Futexes are
// tricky").
#pragma once

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace reprise::profiler {

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

}  // namespace reprise::profiler
