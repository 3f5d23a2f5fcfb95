// SPDX-License-Identifier: Apache-2.0
//
// The native engine of the tape: it runs a planned step from beginning to end.
//
// Most ops of a planned forward are only compared with the captured step, and
// most saved tensors are only kept. In Python each of these costs microseconds,
// and tens of microseconds in a step whose tensors evict the interpreter from
// the CPU cache. In C++:
//
//   gate.h         sees every op, below autograd
//     records.h    records the ops that are recomputed
//   saved.h        the saved-tensor hooks: saves, discards, hands out
//     replay.h     runs a recorded op again
//     on_demand.h  the same when the step no longer follows its plan
//
// tape_run.py decides, for this engine and the Python one alike, whether a step
// follows its plan.
//
// While the gate is open, the tape's dispatch mode stays on torch's stack, but
// the Python key is not in the thread's set, so ops do not reach the mode. For
// an op that the gate does not let through, it restores the state that the
// thread would have without a gate:
//
//   gate open      keys: Gate              stack: ground, tape
//   one op aside   keys: Python, Snapshot  stack: ground, tape  (no Gate)
//
// So the mode's semantics are not implemented twice: another mode that the
// program pushes, a tensor subclass and a nested call all meet the mode itself.
// The ground is a mode that does nothing. It is needed because torch includes
// the Python key when the first mode is pushed and removes it when the last one
// is popped, and the tape's mode is popped and pushed around each of its calls.
// The Python key is not excluded either: torch chooses other ops if it is, and
// the captured step had a mode.
//
// Runs without the GIL, except in autograd's hooks, which hold it.
//
// This file is the Python module and the only translation unit: the code that
// runs for every op is in headers that belong to it alone, so that the compiler
// can inline all of it and torch's headers are parsed once.

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>
#include <vector>

#include "ambient.h"
#include "below.h"
#include "bound.h"
#include "digest.h"
#include "fault.h"
#include "gate.h"
#include "remembered.h"
#include "saved.h"
#include "sheet.h"
#include "shortcut.h"
#include "track.h"
#include "track_methods.h"

namespace reprise_fast {
namespace {

// Installs the gate with these functions of Python, once per process. Returns
// false if something else already uses the gate's dispatch key.
bool Setup(pybind11::object unpack, pybind11::object stale,
           pybind11::object modified, pybind11::object fault,
           const std::vector<Name>& names, pybind11::object current,
           pybind11::object enter, pybind11::object leave) {
  auto& dispatcher = c10::Dispatcher::singleton();
  if (ignored != nullptr) return true;
  if (dispatcher.hasBackendFallbackForDispatchKey(kGate)) return false;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (op.has_value() && op->hasKernelForDispatchKey(kGate)) return false;
  }
  auto found = std::vector<c10::OperatorHandle>();
  for (const auto& [name, overload] : names) {
    const auto op = dispatcher.findOp({name, overload});
    // Others are known only to TorchScript: they never come here.
    if (op.has_value()) found.push_back(*op);
  }
  // Never undone: a graph may still hold what was packed through it.
  static auto registration = dispatcher.registerFallback(
      kGate, c10::KernelFunction::makeFromBoxedFunction<&Gate>(), "reprise");
  ignored = new std::vector<c10::OperatorHandle>(std::move(found));
  python_fault = fault.release().ptr();
  python_unpack = unpack.release().ptr();
  python_stale = stale.release().ptr();
  python_modified = modified.release().ptr();
  python_current = current.release().ptr();
  python_enter = enter.release().ptr();
  python_leave = leave.release().ptr();
  return true;
}

#define REPRISE_BOUND(name, function) \
  { name, REPRISE_ENTRY(name, Bound<function>::Call), METH_VARARGS, nullptr }

PyMethodDef functions[] = {
    REPRISE_BOUND("setup", Setup),
    REPRISE_BOUND("sheet", SheetOf),
    {"open", REPRISE_ENTRY("open", Open), METH_O, nullptr},
    {"tell", REPRISE_ENTRY("tell", Tell), METH_O, nullptr},
    {"watch", REPRISE_ENTRY("watch", Watch), METH_O, nullptr},
    {"unwatch", REPRISE_ENTRY("unwatch", Unwatch), METH_NOARGS, nullptr},
    {"close", REPRISE_ENTRY("close", Close), METH_NOARGS, nullptr},
    {"aside", REPRISE_ENTRY("aside", SetAside), METH_O, nullptr},
    {"follow", REPRISE_ENTRY("follow", Follow), METH_NOARGS, nullptr},
    REPRISE_BOUND("clock", Clock),
    REPRISE_BOUND("clocked", Clocked),
    {"unpack", Unpack, METH_O, nullptr},
    REPRISE_BOUND("let_go", LetGo),
    REPRISE_BOUND("digest", DigestOf),
    {"versions", REPRISE_ENTRY("versions", Versions), METH_O, nullptr},
    REPRISE_BOUND("mark", MarkBytes),
    {"copy_all", REPRISE_ENTRY("copy_all", CopyAll), METH_VARARGS, nullptr},
    {"gradients", REPRISE_ENTRY("gradients", TakeGradients), METH_O, nullptr},
    REPRISE_BOUND("untouched", Untouched),
    REPRISE_BOUND("normalized", CheckedNormalized),
    REPRISE_BOUND("normalizes", Normalizes),
    REPRISE_BOUND("round_once", RoundOnce),
    REPRISE_BOUND("is_mask", IsMask),
    REPRISE_BOUND("bits_of", CheckedBitsOf),
    REPRISE_BOUND("spread_bits", CheckedSpreadBits),
#ifdef REPRISE_INJECT
    {"inject", inject::Inject, METH_VARARGS, nullptr},
    {"injected", inject::Injected, METH_NOARGS, nullptr},
#endif
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                          .m_name = "reprise_fast",
                          .m_doc = "The native engine of the tape.",
                          .m_size = -1,
                          .m_methods = functions};

void Describe(PyTypeObject& type, const char* name, Py_ssize_t bytes,
              destructor dealloc) {
  type.tp_name = name;
  type.tp_basicsize = bytes;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_dealloc = dealloc;
}

}  // namespace

PyMODINIT_FUNC PyInit_reprise_fast() {
  Describe(track_type, "reprise_fast.Track", sizeof(Track), TrackDealloc);
  track_type.tp_new = REPRISE_ENTRY("Track", TrackNew);
  track_type.tp_members = track_members;
  track_type.tp_methods = track_methods;
  type_of_tracks = &track_type;
  Describe(kept_type, "reprise_fast.Kept", sizeof(Kept), KeptDealloc);
  Describe(ref_type, "reprise_fast.Ref", sizeof(Ref), RefDealloc);
  for (PyTypeObject* type : {&track_type, &kept_type, &ref_type})
    if (PyType_Ready(type) < 0) return nullptr;
  PyObject* const module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  if (PyModule_AddObjectRef(module, "Track", (PyObject*)&track_type) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}

}  // namespace reprise_fast
