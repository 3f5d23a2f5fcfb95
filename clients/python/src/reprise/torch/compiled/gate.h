// SPDX-License-Identifier: Apache-2.0
//
// The gate: a boxed kernel below autograd that compares every op of an open
// step with the captured one, records those that are made again and lets them
// through. An op it does not let through meets the tape's mode as if there were
// no gate; fast.cc draws the two states.
//
// Behind the gate the saved-tensor hooks are taken off until an op around which
// the plan wants one. What is saved between op i - 1 and op i, outputs of the
// one and inputs of the other, is window i: all of a window goes through the
// hooks or nothing of it.
//
// Costs some 0.1 us per op that is let through, and 0.8 us more for each tensor
// that goes through the hooks.
#ifndef REPRISE_TORCH_COMPILED_GATE_H_
#define REPRISE_TORCH_COMPILED_GATE_H_

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "below.h"
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

// ops.IGNORED: they are no rows, and pass.
inline std::vector<c10::OperatorHandle>* ignored = nullptr;

inline thread_local Track* open_track = nullptr;
// Modes on the stack, with the tape's.
inline thread_local int64_t open_depth = 0;

inline void ReachMode(bool on) {
  tls_set_dispatch_key_included(DispatchKey::Python, on);
  tls_set_dispatch_key_included(DispatchKey::PythonTLSSnapshot, on);
}

// For one op things are as they would be without a gate.
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

// The tape's saved-tensor hooks, while they are off; how many lie under them.
using Hooks = std::pair<c10::SafePyObject, c10::SafePyObject>;
inline thread_local std::optional<Hooks> parked;
inline thread_local size_t hooks_below = 0;

inline void TurnHooks(bool on) {
  using at::SavedTensorDefaultHooks;
  if (on != parked.has_value()) return;
  // The program has put hooks of its own on ours, or forbids any.
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

// The window that begins behind the last op.
inline void EnterWindow(Track& track) {
  const Sheet& page = track.Page();
  const auto at = static_cast<size_t>(track.next);
  if (page.hooked.empty()) return;
  const bool on = track.armed && at < page.hooked.size() && page.hooked[at];
  if (on) track.slot = page.first_slot[at];
  TurnHooks(on);
}

inline bool IsIgnored(const c10::OperatorHandle& op) {
  return std::find(ignored->begin(), ignored->end(), op) != ignored->end();
}

// A tensor of a class that takes its calls apart, in Python.
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

// May it pass unseen by Python? Advances to the next row.
inline bool LetThrough(Track& track, const c10::OperatorHandle& op,
                       const torch::jit::Stack& stack) {
  if (TorchDispatchModeTLS::stack_len() != open_depth) return false;
  const auto count = static_cast<long>(op.schema().arguments().size());
  if (std::any_of(stack.end() - count, stack.end(), IsSubclass)) return false;
  if (!track.armed) return !op.schema().is_mutable();
  const Sheet& page = track.Page();
  const auto at = static_cast<size_t>(track.next);
  if (at < page.rows.size() && page.rows[at] == op) {
    if (track.Strays()) return false;
    ++track.next;
    track.Say(page.row_ops[at]);
    return true;
  }
  return IsIgnored(op);
}

inline void Gate(const c10::OperatorHandle& op, DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const DispatchKeySet below =
      keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGate);
  Track* const track = open_track;
  // Another thread that inherited our keys, a caller that wants no mode, or a
  // plain forward that is timed.
  if (track == nullptr || tls_is_dispatch_key_excluded(DispatchKey::Python)) {
    const c10::impl::ExcludeDispatchKeyGuard once(kGate);
    const auto run = [&] { op.redispatchBoxed(below, stack); };
    if (op_clock) {
      op_clock->Time(op, run);
    } else {
      run();
    }
    return;
  }
  const auto before = track->next;
  if (LetThrough(*track, op, *stack)) {
    const c10::impl::ExcludeDispatchKeyGuard once(kGate);
    const auto run = [&] { op.redispatchBoxed(below, stack); };
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

// open(track) -> bool: from here on the ops of this thread come to the gate.
// Only the ground and the tape's mode are on the stack.
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
  open_track->slot = slot;  // the forward before may have saved some of it
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

inline PyObject* Close(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  // Whatever fails, the gate is out of the way.
  tls_set_dispatch_key_included(kGate, false);
  ReachMode(true);  // the tape's mode leaves the stack next
  struct Held {
    Track* track;
    ~Held() { Py_XDECREF(reinterpret_cast<PyObject*>(track)); }
  };
  const Held held{std::exchange(open_track, nullptr)};
  TurnHooks(true);
  if (held.track != nullptr) {
    held.track->book->records.Sweep(true);
    if (!CountUp(*held.track)) return nullptr;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// follow(): an op that did not come to the gate is over.
inline PyObject* Follow(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  if (open_track != nullptr) EnterWindow(*open_track);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// aside(how) -> how it was: inside a call of the mode (0) neither the gate nor
// the ground below it sees what is called.
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
