// SPDX-License-Identifier: Apache-2.0
//
// What the ops of a forward take where they are, timed from outside Python.
//
// A capture looks at every op from Python, and a good part of what it looks at
// lies in the caches before the next op runs: what it measures is longer than
// what the op takes in a step, by some microseconds for small ops and by a
// third for convolutions. An op that is made again runs between others, as it
// does in a plain step; so this is where its time is taken: between two looks
// at the clock in the gate, of an otherwise plain forward (op_times.py).
//
// Some 1.4 us per op with the clock of the thread, most of it in the kernel.
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
  // By the CPU time of this thread, or by the clock on the wall.
  explicit OpClock(bool cpu)
      : clock_(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC),
        look_ns_(std::numeric_limits<int64_t>::max()) {
    // What two looks take that have nothing between them.
    for (int i = 0; i < 50; ++i) {
      const int64_t begin = Now();
      look_ns_ = std::min(look_ns_, Now() - begin);
    }
  }

  template <typename Run>
  void Time(const c10::OperatorHandle& op, Run run) {
    const int64_t begin = Now();
    run();
    const int64_t took = std::max<int64_t>(0, Now() - begin - look_ns_);
    try {
      times.emplace_back(op, took);
    } catch (const std::bad_alloc&) {
      lost = true;  // the op has run: its caller is the program
    }
  }

  // In the order in which they ended.
  std::vector<std::pair<c10::OperatorHandle, int64_t>> times;
  bool lost = false;  // there was no memory for one

 private:
  int64_t Now() const {
    timespec t{};
    clock_gettime(clock_, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }

  clockid_t clock_;
  int64_t look_ns_;
};

// Of the plain forward that is timed on this thread.
inline thread_local std::optional<OpClock> op_clock;

// clock(cpu) -> bool: the ops of this thread are timed from here on. Not while
// the gate is open for a step, nor under a mode: the program has its own.
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

// clocked() -> [(name, overload, ns)]: no longer; what was timed.
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
