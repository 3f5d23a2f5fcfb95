// SPDX-License-Identifier: Apache-2.0
//
// What a kernel reads besides the arguments of its op: the default dtype, the
// number of threads, the precision of a float32 multiplication, and so on. The
// list, and the reason for it, is in internals/ambient.py.
//
//   Mark          such a state, read within some tenths of a microsecond
//   Surroundings  the states in which the ops of a step were recorded
//   Within        makes the state the recorded one while ops run again
//
// A Mark only tells whether two states are the same. The values are read and
// set by Python: when an op is recorded in a state that is new in this step,
// and when ops run again in another state than the recorded one. Those calls
// take the GIL.
#ifndef REPRISE_TORCH_COMPILED_AMBIENT_H_
#define REPRISE_TORCH_COMPILED_AMBIENT_H_

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/SafePyObject.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/gil.h>
#include <pybind11/pytypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/api/include/torch/version.h>
#include <torch/csrc/python_headers.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace reprise_fast {

// ambient.current and ambient.enter, and ambient.leave, which is tried twice.
inline PyObject* python_current = nullptr;
inline PyObject* python_enter = nullptr;
inline PyObject* python_leave = nullptr;

struct Mark {
  uint64_t flags = 0;    // one bit each
  uint64_t numbers = 0;  // dtype, threads and device
  uint64_t choices = 0;  // precisions and preferred libraries, four bits each
  bool operator==(const Mark&) const = default;
};

// Reads a Mark. Releases of torch differ in what there is to be read: what a
// release does not have is left out.
template <typename Context>
Mark ReadMark(Context& c, bool gpu) {
  Mark mark;
  const auto flag = [&](bool on) {
    mark.flags = mark.flags << 1 | (on ? 1 : 0);
  };
  const auto choice = [&](auto value) {
    mark.choices = mark.choices << 4 | (static_cast<uint64_t>(value) & 15);
  };
  const volatile double smallest = 2.2250738585072014e-308;
  flag(smallest * 0.5 == 0.0);  // denormal numbers are flushed
  flag(c.deterministicAlgorithms());
  flag(c.deterministicAlgorithmsWarnOnly());
  flag(c.deterministicFillUninitializedMemory());
  flag(c.userEnabledMkldnn());
  if constexpr (requires { c.deterministicMkldnn(); })
    flag(c.deterministicMkldnn());
  if constexpr (requires { c.userEnabledNNPACK(); })
    flag(c.userEnabledNNPACK());
  flag(c.allowFP16ReductionCPU());
  if constexpr (requires { c.allowFP16BF16ReductionMathSDP(); })
    flag(c.allowFP16BF16ReductionMathSDP());
  flag(c.userEnabledFlashSDP());
  flag(c.userEnabledMemEfficientSDP());
  flag(c.userEnabledMathSDP());
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
  for (const auto op :
       {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN}) {
    choice(c.float32Precision(at::Float32Backend::MKLDNN, op));
    if (gpu) choice(c.float32Precision(at::Float32Backend::CUDA, op));
  }
#else
  choice(c.float32MatmulPrecision());
  flag(c.allowTF32CuDNN());
#endif
  const auto threads = static_cast<uint32_t>(at::get_num_threads());
  mark.numbers = uint64_t{threads} << 32 |
                 static_cast<uint8_t>(c10::get_default_dtype_as_scalartype());
  if (!gpu) return mark;
  flag(c.userEnabledCuDNNSDP());
  flag(c.userEnabledCuDNN());
  flag(c.benchmarkCuDNN());
  flag(c.deterministicCuDNN());
  choice(c.allowFP16ReductionCuBLAS());
  choice(c.allowBF16ReductionCuBLAS());
  if constexpr (requires { c.allowFP16AccumulationCuBLAS(); })
    flag(c.allowFP16AccumulationCuBLAS());
  choice(c.linalgPreferredBackend());
  choice(c.blasPreferredBackend());
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  mark.numbers |= uint64_t{static_cast<uint8_t>(guard.getDevice().index())}
                  << 8;
  return mark;
}

inline Mark MarkNow(bool gpu) { return ReadMark(at::globalContext(), gpu); }

// Calls a Python function; takes the GIL. Throws what it raises.
inline c10::SafePyObject CallPython(PyObject* function, PyObject* argument) {
  const pybind11::gil_scoped_acquire held;
  PyObject* const found =
      PyObject_CallFunctionObjArgs(function, argument, nullptr);
  if (found == nullptr) {
    python_error error;
    error.persist();
    throw std::move(error);
  }
  return {found, getPyInterpreter()};
}

// Returns a Mark as bytes.
inline pybind11::bytes MarkBytes(bool gpu) {
  const Mark now = MarkNow(gpu);
  return {reinterpret_cast<const char*>(&now), sizeof(now)};
}

class Surroundings {
 public:
  struct State {
    Mark mark;
    c10::SafePyObject values;
  };

  bool gpu = false;  // whether the step runs on a GPU

  // Returns the number of the present state. Throws if it cannot be read.
  std::size_t Here() {
    const Mark now = MarkNow(gpu);
    // The state of the last op, as a rule.
    for (std::size_t i = states_.size(); i-- > 0;)
      if (states_[i]->mark == now) return i;
    states_.push_back(std::make_shared<const State>(
        State{now, CallPython(python_current, nullptr)}));
    return states_.size() - 1;
  }

  const State& At(std::size_t number) const { return *states_[number]; }

  // Takes over a state of an earlier step; returns the newest one of this step,
  // for the next. Null: there is none.
  void Know(std::shared_ptr<const State> state) {
    if (state != nullptr) states_.push_back(std::move(state));
  }
  std::shared_ptr<const State> Newest() const {
    return states_.empty() ? nullptr : states_.back();
  }

 private:
  std::vector<std::shared_ptr<const State>> states_;
};

// While it is alive, the state is the one of the last `Be`.
class Within {
 public:
  explicit Within(const Surroundings& all)
      : all_(all), outside_(MarkNow(all.gpu)) {}
  Within(const Within&) = delete;
  ~Within() { Back(); }

  // Makes the state the one in which a call was recorded. Throws if it cannot
  // be set; then it is the one outside.
  void Be(std::size_t number) {
    if (number == at_) return;
    Back();
    const auto& state = all_.At(number);
    if (!(state.mark == outside_))
      undo_.push_back(
          CallPython(python_enter, state.values.ptr(getPyInterpreter())));
    at_ = number;
  }

 private:
  static constexpr std::size_t kOutside = static_cast<std::size_t>(-1);

  void Back() {
    at_ = kOutside;
    while (!undo_.empty()) {
      const pybind11::gil_scoped_acquire held;
      PyObject* const undo = undo_.back().ptr(getPyInterpreter());
      Py_XDECREF(PyObject_CallFunctionObjArgs(python_leave, undo, nullptr));
      PyErr_Clear();
      undo_.pop_back();
    }
  }

  const Surroundings& all_;
  const Mark outside_;
  std::size_t at_ = kOutside;
  std::vector<c10::SafePyObject> undo_;  // at most one
};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_AMBIENT_H_
