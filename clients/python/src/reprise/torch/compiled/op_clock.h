// SPDX-License-Identifier: Apache-2.0
//
// Measures how long the ops of a forward take, without Python in between.
//
// A capture inspects every op from Python and thereby pulls much of its data
// into the CPU cache before the next op runs. What it measures is therefore
// longer than the op takes in a step: by some microseconds for small ops, by a
// third for convolutions. A replayed op runs between other ops, as it does in a
// step. So the gate reads the clock before and after each op of a forward that
// is plain, or runs under a plan made from shapes (op_times.py).
//
// Costs about 1.4 us per op with the thread's CPU clock, most of it in the
// kernel.
#ifndef REPRISE_TORCH_COMPILED_OP_CLOCK_H_
#define REPRISE_TORCH_COMPILED_OP_CLOCK_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "below.h"

namespace reprise_fast {

class OpClock {
 public:
  // Measures CPU time of this thread if `cpu` is true, otherwise wall time.
  explicit OpClock(bool cpu)
      : clock_(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC),
        look_ns_(std::numeric_limits<int64_t>::max()) {
    // The cost of reading the clock: two readings with nothing in between.
    for (int i = 0; i < 50; ++i) {
      const int64_t begin = Now();
      look_ns_ = std::min(look_ns_, Now() - begin);
    }
  }

  // Runs `run` and records how long it took (ns), less the cost of reading the
  // clock.
  template <typename Run>
  void Time(const c10::OperatorHandle& op, Run run) {
    const int64_t begin = Now();
    run();
    const int64_t took = std::max<int64_t>(0, Now() - begin - look_ns_);
    try {
      times.emplace_back(op, took);
    } catch (const std::bad_alloc&) {
      lost = true;  // the op has run: do not throw
    }
  }

  // Op and time (ns), in the order in which the ops ended.
  std::vector<std::pair<c10::OperatorHandle, int64_t>> times;
  bool lost = false;  // some could not be recorded: out of memory

 private:
  int64_t Now() const {
    timespec t{};
    clock_gettime(clock_, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }

  clockid_t clock_;
  int64_t look_ns_;
};

// The clock of the forward that is being timed on this thread.
inline thread_local std::optional<OpClock> op_clock;

// Starts timing the ops of this thread, also those of a step that the gate is
// opened for from then on. Returns false while it is open, and while the program
// has a dispatch mode on the stack.
inline bool Clock(bool cpu) {
  if (op_clock || c10::impl::TorchDispatchModeTLS::stack_len() != 0 ||
      c10::impl::tls_is_dispatch_key_included(kGate))
    return false;
  op_clock.emplace(cpu);
  c10::impl::tls_set_dispatch_key_included(kGate, true);
  return true;
}

// Stops timing; returns name, overload and time (ns) of each op. Throws
// bad_alloc if some could not be recorded.
inline std::vector<std::tuple<std::string, std::string, int64_t>> Clocked() {
  std::vector<std::tuple<std::string, std::string, int64_t>> found;
  if (!op_clock) return found;
  c10::impl::tls_set_dispatch_key_included(kGate, false);
  const auto times = std::move(op_clock->times);
  const bool lost = op_clock->lost;
  op_clock.reset();
  if (lost) throw std::bad_alloc();
  for (const auto& [op, took] : times) {
    const auto& name = op.operator_name();
    found.emplace_back(name.name, name.overload_name, took);
  }
  return found;
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_OP_CLOCK_H_
