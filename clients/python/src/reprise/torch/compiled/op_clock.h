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

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <limits>
#include <new>
#include <optional>
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

// clock(cpu) -> bool: starts timing the ops of this thread, also those of a step
// that the gate is opened for from then on. False while it is open, and while
// the program has a dispatch mode on the stack.
inline PyObject* Clock(PyObject*, PyObject* cpu) {
  HANDLE_TH_ERRORS
  const int by_cpu = PyObject_IsTrue(cpu);
  if (by_cpu < 0) return nullptr;
  if (op_clock || c10::impl::TorchDispatchModeTLS::stack_len() != 0 ||
      c10::impl::tls_is_dispatch_key_included(kGate))
    Py_RETURN_FALSE;
  op_clock.emplace(by_cpu != 0);
  c10::impl::tls_set_dispatch_key_included(kGate, true);
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// clocked() -> [(name, overload, ns)]: stops timing and returns the times.
// Raises MemoryError if some could not be recorded.
inline PyObject* Clocked(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  if (!op_clock) return PyList_New(0);
  c10::impl::tls_set_dispatch_key_included(kGate, false);
  const auto times = std::move(op_clock->times);
  const bool lost = op_clock->lost;
  op_clock.reset();
  if (lost) throw std::bad_alloc();
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(times.size()));
  for (size_t i = 0; list != nullptr && i < times.size(); ++i) {
    const auto& name = times[i].first.operator_name();
    PyObject* const item =
        Py_BuildValue("(ssL)", name.name.c_str(), name.overload_name.c_str(),
                      static_cast<long long>(times[i].second));
    if (item == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
  }
  return list;
  END_HANDLE_TH_ERRORS
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_OP_CLOCK_H_
