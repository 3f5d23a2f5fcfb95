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
#include <torch/csrc/Exceptions.h>

#include <utility>
#include <vector>

#include "ambient.h"
#include "below.h"
#include "digest.h"
#include "fault.h"
#include "gate.h"
#include "inject.h"
#include "let_go.h"
#include "remembered.h"
#include "saved.h"
#include "sheet_reader.h"
#include "shortcut_functions.h"
#include "track.h"
#include "track_methods.h"

namespace reprise_fast {
namespace {

// setup(unpack, stale, modified, fault, ignored, current, enter, leave) ->
// bool: installs the gate, once per process. False if something else already
// uses the gate's dispatch key.
PyObject* Setup(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *unpack = nullptr, *stale = nullptr, *modified = nullptr;
  PyObject *fault = nullptr, *names = nullptr;
  PyObject *current = nullptr, *enter = nullptr, *leave = nullptr;
  if (!PyArg_ParseTuple(args, "OOOOO!OOO", &unpack, &stale, &modified, &fault,
                        &PyList_Type, &names, &current, &enter, &leave))
    return nullptr;
  auto& dispatcher = c10::Dispatcher::singleton();
  if (ignored != nullptr) Py_RETURN_TRUE;
  if (dispatcher.hasBackendFallbackForDispatchKey(kGate)) Py_RETURN_FALSE;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (op.has_value() && op->hasKernelForDispatchKey(kGate)) Py_RETURN_FALSE;
  }
  auto found = std::vector<c10::OperatorHandle>();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names); ++i) {
    const auto op = OperatorOf(PyList_GET_ITEM(names, i));
    if (op.has_value()) found.push_back(*op);
    PyErr_Clear();  // known only to TorchScript: never comes here
  }
  // Never undone: a graph may still hold what was packed through it.
  static auto registration = dispatcher.registerFallback(
      kGate, c10::KernelFunction::makeFromBoxedFunction<&Gate>(), "reprise");
  ignored = new std::vector<c10::OperatorHandle>(std::move(found));
  Py_INCREF(unpack);
  Py_INCREF(stale);
  Py_INCREF(modified);
  Py_INCREF(fault);
  python_fault = fault;
  python_unpack = unpack;
  python_stale = stale;
  python_modified = modified;
  python_current = Py_NewRef(current);
  python_enter = Py_NewRef(enter);
  python_leave = Py_NewRef(leave);
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"setup", REPRISE_ENTRY("setup", Setup), METH_VARARGS,
     "Installs the gate. Returns false if its dispatch key is in use."},
    {"open", REPRISE_ENTRY("open", Open), METH_O,
     "Opens the gate for a tape: ops reach the gate."},
    {"tell", REPRISE_ENTRY("tell", Tell), METH_O,
     "Sets which other steps are told of writes."},
    {"watch", REPRISE_ENTRY("watch", Watch), METH_O,
     "Sets which steps are told of writes while no step is open."},
    {"unwatch", REPRISE_ENTRY("unwatch", Unwatch), METH_NOARGS, "Ends that."},
    {"close", REPRISE_ENTRY("close", Close), METH_NOARGS,
     "Closes the gate: ops reach the mode."},
    {"aside", REPRISE_ENTRY("aside", SetAside), METH_O,
     "Lets ops bypass the gate, or pass it again."},
    {"follow", REPRISE_ENTRY("follow", Follow), METH_NOARGS,
     "Follows an op that bypassed the gate."},
    {"clock", REPRISE_ENTRY("clock", Clock), METH_O, "Starts to time ops."},
    {"clocked", REPRISE_ENTRY("clocked", Clocked), METH_NOARGS,
     "Stops timing and returns the times."},
    {"unpack", Unpack, METH_O, "The unpack hook."},
    {"let_go", REPRISE_ENTRY("let_go", LetGo), METH_O,
     "Releases what a graph saved for a backward that will not run."},
    {"digest", REPRISE_ENTRY("digest", PyDigest), METH_VARARGS,
     "Returns a 128-bit digest of a tensor's bytes."},
    {"store", REPRISE_ENTRY("store", PyStore), METH_VARARGS,
     "Writes a tensor's bytes to a file."},
    {"versions", REPRISE_ENTRY("versions", Versions), METH_O,
     "Returns the identities and versions of tensors."},
    {"mark", REPRISE_ENTRY("mark", PyMark), METH_O,
     "Returns what tells apart two states around an op."},
    {"copy_all", REPRISE_ENTRY("copy_all", CopyAll), METH_VARARGS,
     "Copies tensors into buffers."},
    {"gradients", REPRISE_ENTRY("gradients", TakeGradients), METH_O,
     "Returns the identities and versions of gradients."},
    {"untouched", REPRISE_ENTRY("untouched", Untouched), METH_VARARGS,
     "Returns which gradients are unchanged."},
    {"normalized", REPRISE_ENTRY("normalized", PyNormalized), METH_VARARGS,
     "Computes a batch norm from its saved statistics."},
    {"normalizes", REPRISE_ENTRY("normalizes", PyNormalizes), METH_VARARGS,
     "Returns whether `normalized` computes the same bits."},
    {"round_once", REPRISE_ENTRY("round_once", RoundOnce), METH_VARARGS,
     "Returns how the multiplication and addition are rounded."},
    {"is_mask", REPRISE_ENTRY("is_mask", PyIsMask), METH_O,
     "Returns whether a mask can be kept as bits."},
    {"bits_of", REPRISE_ENTRY("bits_of", PyBitsOf), METH_O,
     "Packs a mask into bits."},
    {"spread_bits", REPRISE_ENTRY("spread_bits", PySpreadBits), METH_VARARGS,
     "Unpacks the bits of a mask."},
#ifdef REPRISE_INJECT
    {"inject", inject::Inject, METH_VARARGS,
     "Makes a function or an allocation fail from here on."},
    {"injected", inject::Injected, METH_NOARGS,
     "Returns what was called and what failed."},
#endif
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "reprise_fast",
                          "The native engine of the tape.",
                          -1,
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

void Describe(PyTypeObject& type, const char* name, Py_ssize_t bytes,
              destructor dealloc) {
  type.tp_name = name;
  type.tp_basicsize = bytes;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_dealloc = dealloc;
}

}  // namespace

PyMODINIT_FUNC PyInit_reprise_fast() {
  Describe(sheet_type, "reprise_fast.Sheet", sizeof(SheetObject), SheetDealloc);
  sheet_type.tp_new = REPRISE_ENTRY("Sheet", SheetNew);
  Describe(track_type, "reprise_fast.Track", sizeof(Track), TrackDealloc);
  track_type.tp_new = REPRISE_ENTRY("Track", TrackNew);
  track_type.tp_members = track_members;
  track_type.tp_methods = track_methods;
  type_of_tracks = &track_type;
  Describe(kept_type, "reprise_fast.Kept", sizeof(Kept), KeptDealloc);
  Describe(ref_type, "reprise_fast.Ref", sizeof(Ref), RefDealloc);
  for (PyTypeObject* type : {&sheet_type, &track_type, &kept_type, &ref_type})
    if (PyType_Ready(type) < 0) return nullptr;
  PyObject* const module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  if (PyModule_AddObjectRef(module, "Sheet", (PyObject*)&sheet_type) < 0 ||
      PyModule_AddObjectRef(module, "Track", (PyObject*)&track_type) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}

}  // namespace reprise_fast
