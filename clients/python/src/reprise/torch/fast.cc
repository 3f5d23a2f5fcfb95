// SPDX-License-Identifier: Apache-2.0
//
// The compiled half of the tape: passes by what a plan leaves alone.
//
// Most ops of a planned forward are only looked at, and most saved tensors are
// only kept. In Python each costs microseconds, and tens of them in a step
// whose tensors throw the interpreter out of the caches. Here
//
//   gate     a boxed kernel below autograd, at a key that nothing else uses,
//            compares every op with the captured one and lets it through;
//            behind it, it takes the saved-tensor hooks off until an op around
//            which the plan wants one: what is saved meanwhile costs nothing
//   pack     keeps a tensor that the plan keeps, between those it gives up
//   unpack   hands it back, where the backward comes as captured
//
// and everything else is handed to the Python of tape.py, which is complete
// without this file: recorded ops, writes, ops out of step, replays.
//
// While the gate is open the tape's dispatch mode is on torch's stack as
// always, but the Python key is not in the thread's set, so that ops do not
// come to the mode. For an op it does not let through the gate puts things
// back as they are without it:
//
//   gate open      keys: Gate              stack: ground, tape
//   one op aside   keys: Python, Snapshot  stack: ground, tape  (no Gate)
//
// so nothing of the mode's semantics is written twice: another mode that the
// program pushes, a tensor subclass, a nested call all meet the mode itself.
// The ground is a mode that does nothing: torch takes the Python key in when
// the first mode comes and out when the last one goes, and it goes and comes
// around every call of a mode. The key is not excluded either: torch chooses
// other ops where no mode can see them, and the captured step had one.
//
// What is saved between op i - 1 and op i, outputs of the one and inputs of the
// other, is window i. All of a window goes through the hooks or nothing of it.
//
// Costs some 0.3 us per op.
//
// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
#include <structmember.h>
// clang-format on

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::autograd {
int get_current_graph_task_id();
}

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::impl::tls_is_dispatch_key_excluded;
using c10::impl::tls_is_dispatch_key_included;
using c10::impl::tls_set_dispatch_key_excluded;
using c10::impl::tls_set_dispatch_key_included;
using c10::impl::TorchDispatchModeTLS;

// Right below Python, where a dispatch mode sees ops. Meant for a FakeTensor
// mode written in C++; Setup refuses a torch that has one.
constexpr DispatchKey kGate = DispatchKey::Fake;

// ---- Objects ---------------------------------------------------------------

// A program as the gate reads it. Never changes.
struct Sheet {
  std::vector<std::optional<c10::OperatorHandle>> rows;  // none: for Python
  std::vector<char> given_up;                            // by slot
  std::vector<int64_t> events;                           // slots
  std::vector<char> quiet;  // by event: nothing is replayed before it
  // By row and by event: the op of the step graph that begins.
  std::vector<int64_t> row_ops;
  std::vector<int64_t> event_ops;
  // By window: does it go through the hooks, and its first slot. Empty: all do.
  std::vector<char> hooked;
  std::vector<int64_t> first_slot;
};

struct SheetObject {
  PyObject_HEAD Sheet* sheet;
};

// How far a step has come: the part of tape.Run that both sides change.
struct Track {
  PyObject_HEAD PyObject* sheet;
  PyObject* run;  // weak reference
  long long next;
  long long slot;
  long long cursor;
  long long task;
  unsigned long long here;  // reprise_at of the agent; 0: nobody is told
  char armed;
  char safe;

  const Sheet& Page() const {
    return *reinterpret_cast<SheetObject*>(sheet)->sheet;
  }
  // Where the step is, for who asks after the job was killed.
  void Say(int64_t op) const {
    if (here != 0)
      reinterpret_cast<void (*)(uint64_t)>(here)(static_cast<uint64_t>(op) + 1);
  }
  // Borrowed; nullptr: the run is gone, and with it everything it replays.
  PyObject* Run() const {
    PyObject* const alive = PyWeakref_GetObject(run);
    return alive == Py_None ? nullptr : alive;
  }
};

// What autograd keeps of a tensor that stays.
struct Kept {
  PyObject_HEAD Track* track;
  long long slot;
  uint32_t version;
  at::Tensor tensor;
};

PyObject* python_unpack = nullptr;  // of what is not a Kept of ours
PyObject* python_stale = nullptr;   // raises for (tensor, version)
std::vector<c10::OperatorHandle>* ignored = nullptr;

// ---- The gate --------------------------------------------------------------

thread_local Track* open_track = nullptr;
thread_local int64_t open_depth = 0;  // modes on the stack, with the tape's

void ReachMode(bool on) {
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
thread_local std::optional<Hooks> parked;
thread_local size_t hooks_below = 0;

void TurnHooks(bool on) {
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
void EnterWindow(Track& track) {
  const Sheet& page = track.Page();
  const auto at = static_cast<size_t>(track.next);
  if (page.hooked.empty()) return;
  const bool on = track.armed && at < page.hooked.size() && page.hooked[at];
  if (on) track.slot = page.first_slot[at];
  TurnHooks(on);
}

bool IsIgnored(const c10::OperatorHandle& op) {
  return std::find(ignored->begin(), ignored->end(), op) != ignored->end();
}

// A tensor of a class that takes its calls apart, in Python.
bool IsSubclass(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && tensor.key_set().has(DispatchKey::Python);
  }
  if (!value.isList() || value.isIntList() || value.isDoubleList())
    return false;
  const auto items = value.toListRef();
  return std::any_of(items.begin(), items.end(), IsSubclass);
}

// May it pass unseen by Python?
bool LetThrough(Track& track, const c10::OperatorHandle& op,
                const torch::jit::Stack& stack) {
  if (TorchDispatchModeTLS::stack_len() != open_depth) return false;
  const auto count = static_cast<long>(op.schema().arguments().size());
  if (std::any_of(stack.end() - count, stack.end(), IsSubclass)) return false;
  if (!track.armed) return !op.schema().is_mutable();
  const auto& rows = track.Page().rows;
  const auto at = static_cast<size_t>(track.next);
  if (at < rows.size() && rows[at].has_value() && *rows[at] == op) {
    ++track.next;
    track.Say(track.Page().row_ops[at]);
    return true;
  }
  return IsIgnored(op);
}

void Gate(const c10::OperatorHandle& op, DispatchKeySet keys,
          torch::jit::Stack* stack) {
  const DispatchKeySet below =
      keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, kGate);
  Track* const track = open_track;
  // Another thread that inherited our keys, or a caller that wants no mode.
  if (track == nullptr || tls_is_dispatch_key_excluded(DispatchKey::Python)) {
    const c10::impl::ExcludeDispatchKeyGuard once(kGate);
    op.redispatchBoxed(below, stack);
    return;
  }
  const auto before = track->next;
  if (LetThrough(*track, op, *stack)) {
    const c10::impl::ExcludeDispatchKeyGuard once(kGate);
    op.redispatchBoxed(below, stack);
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
PyObject* Open(PyObject*, PyObject* track) {
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

PyObject* Close(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  TurnHooks(true);
  tls_set_dispatch_key_included(kGate, false);
  ReachMode(true);  // the tape's mode leaves the stack next
  Py_CLEAR(open_track);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// follow(): an op that did not come to the gate is over.
PyObject* Follow(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  if (open_track != nullptr) EnterWindow(*open_track);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// aside(how) -> how it was: inside a call of the mode (0) neither the gate nor
// the ground below it sees what is called.
PyObject* SetAside(PyObject*, PyObject* value) {
  const long how = PyLong_AsLong(value);
  if (how < 0) return nullptr;
  const bool gate = !tls_is_dispatch_key_excluded(kGate);
  const bool mode = tls_is_dispatch_key_included(DispatchKey::Python);
  tls_set_dispatch_key_excluded(kGate, (how & 1) == 0);
  ReachMode((how & 2) != 0);
  return PyLong_FromLong((gate ? 1 : 0) | (mode ? 2 : 0));
}

// ---- Saved tensors ---------------------------------------------------------

extern PyTypeObject kept_type;

PyObject* Pack(PyObject* self, PyObject* value) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  const Sheet& page = track->Page();
  const auto slot = static_cast<size_t>(track->slot);
  const bool gives_up =
      track->armed && slot < page.given_up.size() && page.given_up[slot];
  if (gives_up || !THPVariable_CheckExact(value)) {
    PyObject* const run = track->Run();
    if (run == nullptr) {
      PyErr_SetString(PyExc_RuntimeError, "a step that is over saves a tensor");
      return nullptr;
    }
    return PyObject_CallMethod(run, "pack", "O", value);
  }
  auto* const kept = PyObject_New(Kept, &kept_type);
  if (kept == nullptr) return nullptr;
  new (&kept->tensor) at::Tensor();
  Py_INCREF(self);
  kept->track = track;
  kept->slot = track->armed ? track->slot : -1;
  ++track->slot;
  {
    const c10::impl::ExcludeDispatchKeyGuard unseen(
        DispatchKeySet(DispatchKey::Python) |
        DispatchKeySet(DispatchKey::PythonTLSSnapshot) | DispatchKeySet(kGate));
    try {
      kept->tensor = THPVariable_Unpack(value).detach();
      kept->version = kept->tensor._version();
    } catch (...) {
      Py_DECREF(kept);
      throw;
    }
  }
  return reinterpret_cast<PyObject*>(kept);
  END_HANDLE_TH_ERRORS
}

// The unpack of a tensor that stayed. The backward may be at an event before
// which something is replayed, or out of order: the run sees to that.
bool Advance(Track& track, long long slot) {
  if (track.safe) return true;
  const Sheet& page = track.Page();
  const auto at = static_cast<size_t>(track.cursor);
  if (at < page.events.size() && page.events[at] == slot && page.quiet[at] &&
      track.task == torch::autograd::get_current_graph_task_id()) {
    ++track.cursor;
    if (track.armed) track.Say(page.event_ops[at]);
    return true;
  }
  PyObject* const run = track.Run();
  if (run == nullptr) return true;
  PyObject* const done = PyObject_CallMethod(run, "advance", "L", slot);
  Py_XDECREF(done);
  return done != nullptr;
}

PyObject* Unpack(PyObject*, PyObject* packed) {
  HANDLE_TH_ERRORS
  if (Py_TYPE(packed) != &kept_type)
    return PyObject_CallFunctionObjArgs(python_unpack, packed, nullptr);
  auto* const kept = reinterpret_cast<Kept*>(packed);
  if (!Advance(*kept->track, kept->slot)) return nullptr;
  PyObject* const tensor = THPVariable_Wrap(kept->tensor);
  if (tensor == nullptr || kept->tensor._version() == kept->version)
    return tensor;
  PyObject* const said =
      PyObject_CallFunction(python_stale, "OI", tensor, kept->version);
  Py_XDECREF(said);
  Py_DECREF(tensor);
  return nullptr;
  END_HANDLE_TH_ERRORS
}

void KeptDealloc(PyObject* self) {
  auto* const kept = reinterpret_cast<Kept*>(self);
  kept->tensor.~Tensor();
  Py_DECREF(kept->track);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject kept_type = {.ob_base = PyVarObject_HEAD_INIT(nullptr, 0)};

// ---- Making sheets and tracks ----------------------------------------------

// The operator of a row ("aten::add", "Tensor"); an error where there is none.
std::optional<c10::OperatorHandle> OperatorOf(PyObject* row) {
  const char *name = nullptr, *overload = nullptr;
  if (!PyArg_ParseTuple(row, "ss", &name, &overload)) return std::nullopt;
  auto found = c10::Dispatcher::singleton().findOp({name, overload});
  if (!found.has_value())
    PyErr_Format(PyExc_LookupError, "no operator %s.%s", name, overload);
  return found;
}

// Sheet(rows, given_up, events, quiet, hooked, first_slot, row_ops, event_ops):
// rows are a list of (name, overload) or None; events, first_slot and both ops
// bytes of int64, the others of 0 and 1.
PyObject* SheetNew(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* rows = nullptr;
  Py_buffer given_up, events, quiet, hooked, first_slot, row_ops, event_ops;
  if (!PyArg_ParseTuple(args, "O!y*y*y*y*y*y*y*", &PyList_Type, &rows,
                        &given_up, &events, &quiet, &hooked, &first_slot,
                        &row_ops, &event_ops))
    return nullptr;
  auto* const sheet = new Sheet;
  const auto copy = [](Py_buffer& from, auto& to) {
    to.resize(static_cast<size_t>(from.len) / sizeof(to[0]));
    std::memcpy(to.data(), from.buf, to.size() * sizeof(to[0]));
    PyBuffer_Release(&from);
  };
  copy(given_up, sheet->given_up);
  copy(events, sheet->events);
  copy(quiet, sheet->quiet);
  copy(hooked, sheet->hooked);
  copy(first_slot, sheet->first_slot);
  copy(row_ops, sheet->row_ops);
  copy(event_ops, sheet->event_ops);
  const auto count = static_cast<size_t>(PyList_GET_SIZE(rows));
  bool fine = sheet->quiet.size() == sheet->events.size() &&
              sheet->event_ops.size() == sheet->events.size() &&
              sheet->row_ops.size() == count &&
              sheet->hooked.size() == sheet->first_slot.size();
  if (!fine) PyErr_SetString(PyExc_ValueError, "lists of different lengths");
  for (Py_ssize_t i = 0; fine && i < PyList_GET_SIZE(rows); ++i) {
    PyObject* const row = PyList_GET_ITEM(rows, i);
    sheet->rows.push_back(row == Py_None ? std::nullopt : OperatorOf(row));
    fine = PyErr_Occurred() == nullptr;
  }
  PyObject* const made = fine ? type->tp_alloc(type, 0) : nullptr;
  if (made == nullptr) {
    delete sheet;
    return nullptr;
  }
  reinterpret_cast<SheetObject*>(made)->sheet = sheet;
  return made;
}

void SheetDealloc(PyObject* self) {
  delete reinterpret_cast<SheetObject*>(self)->sheet;
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject sheet_type = {.ob_base = PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* TrackNew(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *sheet = nullptr, *run = nullptr;
  if (!PyArg_ParseTuple(args, "O!O", &sheet_type, &sheet, &run)) return nullptr;
  PyObject* const weak = PyWeakref_NewRef(run, nullptr);
  if (weak == nullptr) return nullptr;
  auto* const track = reinterpret_cast<Track*>(type->tp_alloc(type, 0));
  if (track == nullptr) {
    Py_DECREF(weak);
    return nullptr;
  }
  Py_INCREF(sheet);
  track->sheet = sheet;
  track->run = weak;
  track->task = -1;
  track->armed = 1;
  return reinterpret_cast<PyObject*>(track);
}

void TrackDealloc(PyObject* self) {
  auto* const track = reinterpret_cast<Track*>(self);
  Py_DECREF(track->sheet);
  Py_DECREF(track->run);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject track_type = {.ob_base = PyVarObject_HEAD_INIT(nullptr, 0)};

PyMemberDef track_members[] = {
    {"next", T_LONGLONG, offsetof(Track, next), 0, nullptr},
    {"slot", T_LONGLONG, offsetof(Track, slot), 0, nullptr},
    {"cursor", T_LONGLONG, offsetof(Track, cursor), 0, nullptr},
    {"task", T_LONGLONG, offsetof(Track, task), 0, nullptr},
    {"here", T_ULONGLONG, offsetof(Track, here), 0, nullptr},
    {"armed", T_BOOL, offsetof(Track, armed), 0, nullptr},
    {"safe", T_BOOL, offsetof(Track, safe), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef track_methods[] = {
    {"pack", Pack, METH_O, "What autograd keeps instead of a saved tensor."},
    {nullptr, nullptr, 0, nullptr}};

// ---- The module ------------------------------------------------------------

// setup(unpack, stale, ignored) -> bool: once per process. False: something
// else is at the gate's key here.
PyObject* Setup(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *unpack = nullptr, *stale = nullptr, *names = nullptr;
  if (!PyArg_ParseTuple(args, "OOO!", &unpack, &stale, &PyList_Type, &names))
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
    PyErr_Clear();  // one that only TorchScript knows never comes here
  }
  // Never taken back: a graph may still hold what was packed through it.
  static auto registration = dispatcher.registerFallback(
      kGate, c10::KernelFunction::makeFromBoxedFunction<&Gate>(), "reprise");
  ignored = new std::vector<c10::OperatorHandle>(std::move(found));
  Py_INCREF(unpack);
  Py_INCREF(stale);
  python_unpack = unpack;
  python_stale = stale;
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"setup", Setup, METH_VARARGS, "Puts the gate in place."},
    {"open", Open, METH_O, "Ops come to the gate."},
    {"close", Close, METH_NOARGS, "They come to the mode."},
    {"aside", SetAside, METH_O, "Takes the gate out of the way, or back."},
    {"follow", Follow, METH_NOARGS, "Behind an op that was aside."},
    {"unpack", Unpack, METH_O, "The unpack hook."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "reprise_fast",
                          "The compiled half of the tape.",
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
  sheet_type.tp_new = SheetNew;
  Describe(track_type, "reprise_fast.Track", sizeof(Track), TrackDealloc);
  track_type.tp_new = TrackNew;
  track_type.tp_members = track_members;
  track_type.tp_methods = track_methods;
  Describe(kept_type, "reprise_fast.Kept", sizeof(Kept), KeptDealloc);
  for (PyTypeObject* type : {&sheet_type, &track_type, &kept_type})
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
