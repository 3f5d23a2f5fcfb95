// SPDX-License-Identifier: Apache-2.0
//
// The gate: a boxed kernel below autograd. It compares every op of an open step
// with the captured step, lets matching ops through and records those that the
// plan recomputes. Any other op goes to the tape's dispatch mode, as if there
// were no gate; fast.cc draws the two states.
//
// The saved-tensor hooks are on only around ops for which the plan wants them.
// Window i is what autograd saves between op i - 1 and op i: outputs of the
// former and inputs of the latter. Either all tensors of a window go through
// the hooks or none do.
//
// Costs about 0.1 us per op let through, and 0.8 us per tensor that goes
// through the hooks.
#ifndef REPRISE_TORCH_COMPILED_GATE_H_
#define REPRISE_TORCH_COMPILED_GATE_H_

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/gil.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "below.h"
#include "bound.h"
#include "fault.h"
#include "op_clock.h"
#include "records.h"
#include "sheet.h"
#include "track.h"

namespace reprise_fast {

using c10::impl::tls_is_dispatch_key_excluded;
using c10::impl::tls_is_dispatch_key_included;
using c10::impl::tls_set_dispatch_key_excluded;
using c10::impl::tls_set_dispatch_key_included;
using c10::impl::TorchDispatchModeTLS;

// ops.IGNORED: ops that are not rows of a program and pass without comparison.
inline std::vector<c10::OperatorHandle>* ignored = nullptr;

// The step for which the gate is open on this thread, or null.
inline thread_local Track* open_track = nullptr;
// Dispatch modes on the stack while the gate is open, including the tape's.
inline thread_local int64_t open_depth = 0;

// Steps of which records may still be replayed: they are told of everything that
// ops of this thread write, in an open step or between a forward and its
// backward (watch.py). A list of Tracks, or of runs that are told in Python
// (tape_run.py); in Python, because another thread may end a watch by emptying
// it. Null: nobody is told.
inline thread_local PyObject* told = nullptr;
inline PyTypeObject* type_of_tracks = nullptr;

// Sets who is told. Needs the GIL.
inline void SetTold(PyObject* steps) {
  Py_XDECREF(std::exchange(told, Py_XNewRef(steps)));
}

// run.before_write_between(tensors). An internal error ends in there.
inline void TellRun(PyObject* run, const std::vector<at::Tensor>& written) {
  const pybind11::object tensors = pybind11::cast(written);
  THPObjectPtr done(
      PyObject_CallMethod(run, "before_write_between", "O", tensors.ptr()));
  if (!done && !Reported()) throw python_error();
}

// Lets other steps copy what a call is about to write, and tries again after an
// internal error, because the write happens in any case.
inline void TellOthers(const c10::OperatorHandle& op,
                       const torch::jit::Stack& stack) {
  const pybind11::gil_scoped_acquire locked;
  const auto steps = FromPython<std::vector<pybind11::object>>(told);
  for (int tried = 0; tried < 2; ++tried) {
    try {
      const auto written = WrittenBy(op, stack);
      for (const pybind11::object& step : steps) {
        if (Py_TYPE(step.ptr()) == type_of_tracks)
          reinterpret_cast<Track*>(step.ptr())
              ->book->records.BeforeWrite(written);
        else
          TellRun(step.ptr(), written);
      }
      return;
    } catch (const python_error&) {
      throw;  // out of memory
    } catch (const std::exception& error) {
      if (tried > 0) Report(error.what());
    }
  }
}

// Includes or removes the keys through which ops reach dispatch modes.
inline void ReachMode(bool on) {
  tls_set_dispatch_key_included(DispatchKey::Python, on);
  tls_set_dispatch_key_included(DispatchKey::PythonTLSSnapshot, on);
}

// For the duration of one op, restores the state that the thread would have
// without a gate.
struct Aside {
  Aside() : excluded(tls_is_dispatch_key_excluded(kGate)) {
    tls_set_dispatch_key_excluded(kGate, true);
    ReachMode(true);
  }
  ~Aside() {
    tls_set_dispatch_key_excluded(kGate, excluded);
    ReachMode(false);
  }
  bool excluded;
};

// The tape's saved-tensor hooks while they are off the stack, and the number of
// hooks below them.
using Hooks = std::pair<c10::SafePyObject, c10::SafePyObject>;
inline thread_local std::optional<Hooks> parked;
inline thread_local size_t hooks_below = 0;

// Puts the tape's saved-tensor hooks on torch's stack or takes them off.
inline void TurnHooks(bool on) {
  using at::SavedTensorDefaultHooks;
  if (on != parked.has_value()) return;
  // The program has pushed its own hooks on top of ours, or forbids hooks.
  const auto& tls = SavedTensorDefaultHooks::get_tls_state();
  if (tls.stack.size() != hooks_below + (on ? 0 : 1)) return;
  if (tls.disabled_error_message.has_value()) return;
  if (on) {
    SavedTensorDefaultHooks::push_hooks(std::move(parked->first),
                                        std::move(parked->second));
    parked.reset();
  } else {
    parked.emplace(SavedTensorDefaultHooks::pop_hooks());
  }
}

// Prepares the window that begins after the last op: sets the next slot, and
// the hooks on or off.
inline void EnterWindow(Track& track) {
  const Sheet& page = track.Page();
  const auto at = static_cast<size_t>(track.next);
  if (page.hooked.empty()) return;
  const bool on = track.armed && at < page.hooked.size() && page.hooked[at];
  if (on) track.slot = page.first_slot[at];
  TurnHooks(on);
}

// Returns whether an op is one of ops.IGNORED.
inline bool IsIgnored(const c10::OperatorHandle& op) {
  return std::find(ignored->begin(), ignored->end(), op) != ignored->end();
}

// Returns whether a value is or contains a tensor of a Python subclass with its
// own dispatch.
inline bool IsSubclass(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && tensor.key_set().has(DispatchKey::Python);
  }
  if (!value.isList() || value.isIntList() || value.isDoubleList())
    return false;
  const auto items = value.toListRef();
  return std::any_of(items.begin(), items.end(), IsSubclass);
}

// Returns whether the op may run without Python seeing it. If it is the next
// row of the program, advances to the row after it.
inline bool LetThrough(Track& track, const c10::OperatorHandle& op,
                       const torch::jit::Stack& stack) {
  if (TorchDispatchModeTLS::stack_len() != open_depth) return false;
  const auto count = static_cast<long>(op.schema().arguments().size());
  if (std::any_of(stack.end() - count, stack.end(), IsSubclass)) return false;
  if (!track.armed) return !MayWrite(op);
  const Sheet& page = track.Page();
  const auto at = static_cast<size_t>(track.next);
  if (at < page.rows.size() && page.rows[at] == op) {
    if (track.Strays()) return false;
    if (page.specials[at] && page.specials[at]->aside) return false;
    ++track.next;
    track.Say(page.row_ops[at]);
    return true;
  }
  return IsIgnored(op);
}

// The kernel behind the gate's key: every op of an open step, and of a forward
// that is being timed, arrives here.
inline void Gate(const c10::OperatorHandle& op, DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  DispatchKeySet below =
      keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGate);
  Track* const track = open_track;
  const auto run = [&] {
    const auto call = [&] { op.redispatchBoxed(below, stack); };
    if (op_clock) {
      op_clock->Time(op, call);
    } else {
      call();
    }
  };
  // There is no step here: another thread inherited our dispatch keys, the
  // caller excludes all modes, a plain forward is being timed, or the writes
  // after a forward are watched.
  const bool unseen = tls_is_dispatch_key_excluded(DispatchKey::Python);
  if (track == nullptr || unseen) {
    const c10::impl::ExcludeDispatchKeyGuard once(kGate);
    if (track == nullptr && told != nullptr && !unseen && MayWrite(op))
      TellOthers(op, *stack);
    run();
    return;
  }
  const auto before = track->next;
  if (LetThrough(*track, op, *stack)) {
    // Where torch takes all modes off the stack for a moment, as it does to make
    // an nn.Parameter, it includes their keys again when it puts them back.
    if (below.has(DispatchKey::Python)) {
      below = below - DispatchKeySet({DispatchKey::Python,
                                      DispatchKey::PythonTLSSnapshot});
      ReachMode(false);
    }
    const c10::impl::ExcludeDispatchKeyGuard once(kGate);
    if (told != nullptr && MayWrite(op)) TellOthers(op, *stack);
    const Sheet& page = track->Page();
    const auto row = static_cast<size_t>(before);
    if (track->next != before && page.specials[row]) {
      Settle(*track,
             track->book->records.RunSpecial(
                 *page.specials[row], page.row_ops[row], op, *stack, run));
    } else {
      run();
    }
  } else {
    const Aside aside;
    op.redispatchBoxed(below | DispatchKeySet(DispatchKey::Python) |
                           DispatchKeySet(DispatchKey::PythonTLSSnapshot),
                       stack);
  }
  if (track->next != before || !track->armed) EnterWindow(*track);
}

// open(track) -> bool: from now on the ops of this thread go through the gate.
// False if anything but the ground mode and the tape's mode is on the stack, or
// if the gate is already open.
inline PyObject* Open(PyObject*, PyObject* track) {
  HANDLE_TH_ERRORS
  const auto& hooks = at::SavedTensorDefaultHooks::get_tls_state().stack;
  if (hooks.empty() || tls_is_dispatch_key_excluded(DispatchKey::Python))
    Py_RETURN_FALSE;
  if (open_track != nullptr || TorchDispatchModeTLS::stack_len() != 2)
    Py_RETURN_FALSE;
  Py_INCREF(track);
  open_track = reinterpret_cast<Track*>(track);
  open_depth = 2;
  ReachMode(false);
  tls_set_dispatch_key_included(kGate, true);
  hooks_below = hooks.size() - 1;
  const long long slot = open_track->slot;
  EnterWindow(*open_track);
  open_track->slot = slot;  // an earlier forward may have used some slots
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// tell(steps: list): from now on these are told of what is written, until the
// gate of this thread is closed.
inline PyObject* Tell(PyObject*, PyObject* steps) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_CheckExact(steps), "tell: not a list");
  SetTold(steps);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// watch(steps: list) -> bool: from now on these are told of what is written by
// ops of this thread. False while the gate is open or ops are timed.
inline PyObject* Watch(PyObject*, PyObject* steps) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_CheckExact(steps), "watch: not a list");
  if (open_track != nullptr || op_clock) Py_RETURN_FALSE;
  SetTold(steps);
  tls_set_dispatch_key_included(kGate, true);
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// unwatch(): ends that, on this thread.
inline PyObject* Unwatch(PyObject*, PyObject*) {
  if (told != nullptr && open_track == nullptr) {
    tls_set_dispatch_key_included(kGate, false);
    SetTold(nullptr);
  }
  Py_RETURN_NONE;
}

// close(): ops go to the tape's mode again.
inline PyObject* Close(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  // First of all, so that the gate is closed even if something below fails.
  tls_set_dispatch_key_included(kGate, false);
  ReachMode(true);  // the tape's mode leaves the stack next
  struct Held {
    Track* track;
    ~Held() { Py_XDECREF(reinterpret_cast<PyObject*>(track)); }
  };
  const Held held{std::exchange(open_track, nullptr)};
  SetTold(nullptr);
  TurnHooks(true);
  if (held.track != nullptr) {
    held.track->book->records.Sweep(true);
    CountUp(*held.track);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// follow(): an op that did not come to the gate has run, so the next window
// begins.
inline PyObject* Follow(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  if (open_track != nullptr) EnterWindow(*open_track);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// aside(how) -> int: sets which of the gate (bit 0) and the modes (bit 1) see
// the ops of this thread, and returns the previous value. Inside a call of the
// tape's mode it is 0: neither the gate nor the ground mode sees what the call
// runs.
inline PyObject* SetAside(PyObject*, PyObject* value) {
  const long how = PyLong_AsLong(value);
  if (how < 0) return nullptr;
  const bool gate = !tls_is_dispatch_key_excluded(kGate);
  const bool mode = tls_is_dispatch_key_included(DispatchKey::Python);
  tls_set_dispatch_key_excluded(kGate, (how & 1) == 0);
  ReachMode((how & 2) != 0);
  return PyLong_FromLong((gate ? 1 : 0) | (mode ? 2 : 0));
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_GATE_H_
