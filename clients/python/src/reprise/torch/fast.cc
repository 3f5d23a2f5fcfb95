// SPDX-License-Identifier: Apache-2.0
//
// The compiled half of the tape: a planned step as long as it is as planned.
//
// Most ops of a planned forward are only looked at, and most saved tensors are
// only kept. In Python each costs microseconds, and tens of them in a step
// whose tensors throw the interpreter out of the caches. Here
//
//   gate     a boxed kernel below autograd, at a key that nothing else uses,
//            compares every op with the captured one, records those that are
//            made again (fast_records.h) and lets them through; behind it, it
//            takes the saved-tensor hooks off until an op around which the plan
//            wants one: what is saved meanwhile costs nothing
//   pack     keeps a tensor that the plan keeps, gives up one that it does not
//   unpack   replays what stands before it, hands the tensor out
//
// and everything else is handed to the Python of tape.py, which is complete
// without this file, with what has been recorded so far (fast_handover.h): ops
// out of step, graphs that are kept, replays on demand, compared copies.
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
// Costs some 0.3 us per op that is let through, and runs without the
// interpreter's lock but where autograd's hooks hold it.
//
// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
#include <structmember.h>
// clang-format on

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/gil.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fast_handover.h"
#include "fast_records.h"
#include "fast_shortcut.h"

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
using reprise_fast::CellPtr;
using reprise_fast::Records;
using reprise_fast::Special;

// Right below Python, where a dispatch mode sees ops. Meant for a FakeTensor
// mode written in C++; Setup refuses a torch that has one.
constexpr DispatchKey kGate = DispatchKey::Fake;

// ---- Objects ---------------------------------------------------------------

// A program as the gate reads it. Never changes.
struct Sheet {
  std::vector<std::optional<c10::OperatorHandle>> rows;
  std::vector<std::optional<Special>> specials;  // by row; none: let through
  std::vector<char> given_up;                    // by slot
  std::vector<int64_t> events;                   // slots
  std::vector<char> quiet;  // by event: nothing is replayed before it
  std::vector<std::vector<reprise_fast::Replay>> bursts;  // by event
  // By row and by event: the op of the step graph that begins.
  std::vector<int64_t> row_ops;
  std::vector<int64_t> event_ops;
  std::vector<int64_t> versions;  // by slot: that its unpack finds
  // By window: does it go through the hooks, and its first slot. Empty: all do.
  std::vector<char> hooked;
  std::vector<int64_t> first_slot;
};

struct SheetObject {
  PyObject_HEAD Sheet* sheet;
};

struct Ref;

// The records of a step, and what autograd keeps of it.
struct Book {
  Records records{kGate};
  std::unordered_set<Ref*> refs;
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
  char handed;  // the records are in Python, and more of them are made there
  Book* book;

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

// What autograd keeps instead of a tensor that is given up.
struct Ref {
  PyObject_HEAD Track* track;
  PyObject* run;
  PyObject* twin;  // a ref of records.py, once the records are handed over
  long long slot;
  int64_t version;
  CellPtr cell;
  reprise_fast::Geometry geometry;
  at::Tensor made;
};

PyObject* python_unpack = nullptr;  // of what is not a Kept of ours
PyObject* python_stale = nullptr;   // raises for (tensor, version)
std::vector<c10::OperatorHandle>* ignored = nullptr;

// Adds what has been counted here to the counts of the run.
bool CountUp(Track& track) {
  Records& records = track.book->records;
  PyObject* const run = track.Run();
  const auto dropped = std::exchange(records.dropped, 0);
  const auto replayed = std::exchange(records.replayed, 0);
  if (run == nullptr || (dropped == 0 && replayed == 0)) return true;
  PyObject* const done =
      PyObject_CallMethod(run, "count", "LL", static_cast<long long>(dropped),
                          static_cast<long long>(replayed));
  Py_XDECREF(done);
  return done != nullptr;
}

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

// May it pass unseen by Python? Advances to the next row.
bool LetThrough(Track& track, const c10::OperatorHandle& op,
                const torch::jit::Stack& stack) {
  if (TorchDispatchModeTLS::stack_len() != open_depth) return false;
  const auto count = static_cast<long>(op.schema().arguments().size());
  if (std::any_of(stack.end() - count, stack.end(), IsSubclass)) return false;
  if (!track.armed) return !op.schema().is_mutable();
  const Sheet& page = track.Page();
  const auto at = static_cast<size_t>(track.next);
  if (at < page.rows.size() && page.rows[at] == op) {
    const auto& special = page.specials[at];
    if (special && (track.handed || !Records::CanRecord(op, stack)))
      return false;
    ++track.next;
    track.Say(page.row_ops[at]);
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
    const auto run = [&] { op.redispatchBoxed(below, stack); };
    const Sheet& page = track->Page();
    const auto row = static_cast<size_t>(before);
    if (track->next != before && page.specials[row]) {
      track->book->records.RunSpecial(*page.specials[row], before,
                                      page.row_ops[row], op, *stack, run);
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
  if (open_track != nullptr) {
    open_track->book->records.Sweep(true);
    if (!CountUp(*open_track)) return nullptr;
  }
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
extern PyTypeObject ref_type;

// nullptr without an error: it is not the tensor of the captured step.
PyObject* GiveUp(Track& track, PyObject* run, const at::Tensor& tensor) {
  Records& records = track.book->records;
  CellPtr cell = records.CellOf(tensor);
  if (!cell || cell->dtype != tensor.scalar_type() || !cell->IsWhole())
    return nullptr;
  auto* const ref = PyObject_New(Ref, &ref_type);
  if (ref == nullptr) return nullptr;
  new (&ref->cell) CellPtr(std::move(cell));
  new (&ref->geometry) reprise_fast::Geometry(reprise_fast::GeometryOf(tensor));
  new (&ref->made) at::Tensor();
  ref->track =
      reinterpret_cast<Track*>(Py_NewRef(reinterpret_cast<PyObject*>(&track)));
  ref->run = Py_NewRef(run);
  ref->twin = nullptr;
  ref->slot = track.slot;
  ref->version =
      std::max<int64_t>(ref->cell->Length(),
                        track.Page().versions[static_cast<size_t>(track.slot)]);
  ref->cell->Wait(ref->version);
  track.book->refs.insert(ref);
  ++track.slot;
  ++records.dropped;
  return reinterpret_cast<PyObject*>(ref);
}

void RefDealloc(PyObject* self) {
  auto* const ref = reinterpret_cast<Ref*>(self);
  Book& book = *ref->track->book;
  book.refs.erase(ref);
  ref->made.~Tensor();
  if (ref->cell) reprise_fast::Bury(std::move(ref->cell));
  ref->cell.~CellPtr();
  ref->geometry.~Geometry();
  // What nobody took and whose storage is gone.
  if (book.refs.empty()) book.records.Sweep(true);
  Py_XDECREF(ref->twin);
  Py_DECREF(ref->run);
  Py_DECREF(ref->track);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject ref_type = {.ob_base = PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* Pack(PyObject* self, PyObject* value) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  const Sheet& page = track->Page();
  const auto slot = static_cast<size_t>(track->slot);
  const bool gives_up =
      track->armed && slot < page.given_up.size() && page.given_up[slot];
  PyObject* const run = track->Run();
  if (gives_up && !track->handed && run != nullptr &&
      THPVariable_Check(value)) {
    PyObject* const ref = GiveUp(*track, run, THPVariable_Unpack(value));
    if (ref != nullptr || PyErr_Occurred()) return ref;
  }
  if (gives_up || !THPVariable_CheckExact(value)) {
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

// Replays what stands before an event. false: not to its end.
bool RunBurst(Track& track, size_t event) {
  bool done = false;
  {
    const pybind11::gil_scoped_release released;
    done = track.book->records.Run(track.Page().bursts[event]);
  }
  return done;
}

// The unpack of a saved tensor: replays what stands before it. The backward may
// be a new one, or out of order: the run sees to that.
bool Advance(Track& track, long long slot) {
  if (track.safe) return true;
  const Sheet& page = track.Page();
  const auto at = static_cast<size_t>(track.cursor);
  if (at < page.events.size() && page.events[at] == slot &&
      (page.quiet[at] || !track.handed) &&
      track.task == torch::autograd::get_current_graph_task_id()) {
    ++track.cursor;
    if (track.armed) track.Say(page.event_ops[at]);
    if (page.quiet[at]) return true;
    const bool done = RunBurst(track, at);
    if (!CountUp(track)) return false;
    PyObject* const run = track.Run();
    return done || run == nullptr ||
           PyObject_SetAttrString(run, "safe", Py_True) == 0;
  }
  PyObject* const run = track.Run();
  if (run == nullptr) return true;
  PyObject* const done = PyObject_CallMethod(run, "advance", "L", slot);
  Py_XDECREF(done);
  return done != nullptr;
}

// A tensor that was given up.
PyObject* Take(Ref& ref) {
  const auto in_python = [&] {
    return PyObject_CallFunctionObjArgs(python_unpack, ref.twin, nullptr);
  };
  if (ref.twin != nullptr) return in_python();
  if (!Advance(*ref.track, ref.slot)) return nullptr;
  if (ref.twin != nullptr) return in_python();
  if (ref.made.defined()) {
    ref.cell->Use();
    return THPVariable_Wrap(ref.made);
  }
  reprise_fast::Cell& cell = *ref.cell;
  const int64_t version = std::min(ref.version, cell.Length());
  if (!cell.tensor.defined() || cell.version != version) {
    if (PyObject_SetAttrString(ref.run, "safe", Py_True) < 0) return nullptr;
    return in_python();
  }
  ref.made = ref.track->book->records.ViewAlone(cell.tensor, ref.geometry);
  cell.Waited(ref.version);
  cell.Use();
  return THPVariable_Wrap(ref.made);
}

PyObject* Unpack(PyObject*, PyObject* packed) {
  HANDLE_TH_ERRORS
  if (Py_TYPE(packed) == &ref_type)
    return Take(*reinterpret_cast<Ref*>(packed));
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

// ---- Ops made again in less than their time (fast_shortcut.h, shortcut.py)
// --------

// A tensor, or nothing for None.
std::optional<at::Tensor> TensorOf(PyObject* value) {
  if (value == Py_None) return std::nullopt;
  if (!THPVariable_Check(value)) throw torch::TypeError("not a tensor");
  return THPVariable_Unpack(value);
}

// normalizes(x, weight, bias) -> bool: may `normalized` be called with them?
PyObject* PyNormalizes(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *x, *weight, *bias;
  if (!PyArg_ParseTuple(args, "OOO", &x, &weight, &bias)) return nullptr;
  const auto input = TensorOf(x);
  return PyBool_FromLong(
      input.has_value() &&
      reprise_fast::Normalizes(*input, TensorOf(weight), TensorOf(bias)));
  END_HANDLE_TH_ERRORS
}

// normalized(x, weight, bias, mean, invstd, fused) -> tensor.
PyObject* PyNormalized(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *x, *weight, *bias, *mean, *invstd;
  int fused = 0;
  if (!PyArg_ParseTuple(args, "OOOOOp", &x, &weight, &bias, &mean, &invstd,
                        &fused))
    return nullptr;
  const auto input = TensorOf(x), m = TensorOf(mean), v = TensorOf(invstd);
  const auto w = TensorOf(weight), b = TensorOf(bias);
  if (!input || !m || !v || !reprise_fast::Normalizes(*input, w, b) ||
      !reprise_fast::AreStatistics(*input, *m) ||
      !reprise_fast::AreStatistics(*input, *v))
    throw torch::TypeError("no batch norm that can be made from these");
  return THPVariable_Wrap(
      reprise_fast::Normalized(*input, w, b, *m, *v, fused != 0));
  END_HANDLE_TH_ERRORS
}

// is_mask(tensor) -> bool: can bits be taken of it, once it is filled?
PyObject* PyIsMask(PyObject*, PyObject* value) {
  HANDLE_TH_ERRORS
  const auto mask = TensorOf(value);
  return PyBool_FromLong(mask.has_value() && reprise_fast::IsMask(*mask));
  END_HANDLE_TH_ERRORS
}

// bits_of(mask) -> bytes in a tensor.
PyObject* PyBitsOf(PyObject*, PyObject* value) {
  HANDLE_TH_ERRORS
  const auto mask = TensorOf(value);
  at::Tensor bits;
  if (mask && reprise_fast::IsMask(*mask)) bits = reprise_fast::BitsOf(*mask);
  if (!bits.defined()) throw torch::TypeError("not zeros and ones");
  return THPVariable_Wrap(std::move(bits));
  END_HANDLE_TH_ERRORS
}

// spread_bits(bits, mask): writes them there.
PyObject* PySpreadBits(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *bits, *value;
  if (!PyArg_ParseTuple(args, "OO", &bits, &value)) return nullptr;
  const auto from = TensorOf(bits), mask = TensorOf(value);
  if (!from || !mask || !reprise_fast::IsMask(*mask) ||
      from->scalar_type() != at::kByte || !from->is_contiguous() ||
      from->numel() != (mask->numel() + 7) / 8)
    throw torch::TypeError("these bits are not of this tensor");
  reprise_fast::SpreadBits(*from, *mask);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// round_once(double, once): how this torch rounds in what a shortcut of batch
// norm computes beforehand, for one of the two types it is there for.
PyObject* RoundOnce(PyObject*, PyObject* args) {
  int is_double = 0, once = 0;
  if (!PyArg_ParseTuple(args, "pp", &is_double, &once)) return nullptr;
  reprise_fast::rounds_once[is_double] = once != 0;
  Py_RETURN_NONE;
}

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

std::vector<int64_t> Numbers(PyObject* tuple) {
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
    found.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  return found;
}

// (replays, writes, seeded, shortens, trains, statistics, without, cells,
// reads): a row that has something to do, `without` as a row; None: no such
// row.
bool ReadSpecial(PyObject* item, std::optional<Special>& to) {
  if (item == Py_None) return true;
  Special row;
  long long replays, trains, statistics;
  int writes, seeded, shortens;
  PyObject *without, *cells, *reads;
  if (!PyArg_ParseTuple(item, "LpppLLOO!O!", &replays, &writes, &seeded,
                        &shortens, &trains, &statistics, &without,
                        &PyTuple_Type, &cells, &PyTuple_Type, &reads))
    return false;
  row.replays = replays;
  row.trains = trains;
  row.statistics = statistics;
  row.writes = writes != 0;
  row.seeded = seeded != 0;
  row.shortens = shortens != 0;
  row.cells = Numbers(cells);
  row.first_life_reads = Numbers(reads);
  if (without != Py_None) row.without_statistics = OperatorOf(without);
  to = std::move(row);
  return PyErr_Occurred() == nullptr;
}

// A tuple of (op, ((storage, uses), ...)).
bool ReadBurst(PyObject* item, std::vector<reprise_fast::Replay>& to) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(item); ++i) {
    long long op;
    PyObject* keep;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(item, i), "LO!", &op, &PyTuple_Type,
                          &keep))
      return false;
    reprise_fast::Replay replay{op, {}};
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(keep); ++k) {
      long long storage, uses;
      if (!PyArg_ParseTuple(PyTuple_GET_ITEM(keep, k), "LL", &storage, &uses))
        return false;
      replay.keep.emplace_back(storage, uses);
    }
    to.push_back(std::move(replay));
  }
  return true;
}

// Sheet(rows, specials, bursts, given_up, events, quiet, hooked, first_slot,
// row_ops, event_ops, versions): rows are a list of (name, overload), specials
// and bursts lists as above; events, first_slot, both ops and versions bytes of
// int64, the others of 0 and 1.
PyObject* SheetNew(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *rows = nullptr, *specials = nullptr, *bursts = nullptr;
  Py_buffer given_up, events, quiet, hooked, first_slot, row_ops, event_ops,
      versions;
  if (!PyArg_ParseTuple(args, "O!O!O!y*y*y*y*y*y*y*y*", &PyList_Type, &rows,
                        &PyList_Type, &specials, &PyList_Type, &bursts,
                        &given_up, &events, &quiet, &hooked, &first_slot,
                        &row_ops, &event_ops, &versions))
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
  copy(versions, sheet->versions);
  const auto count = static_cast<size_t>(PyList_GET_SIZE(rows));
  bool fine =
      sheet->quiet.size() == sheet->events.size() &&
      sheet->event_ops.size() == sheet->events.size() &&
      sheet->row_ops.size() == count &&
      sheet->versions.size() == sheet->given_up.size() &&
      static_cast<size_t>(PyList_GET_SIZE(specials)) == count &&
      static_cast<size_t>(PyList_GET_SIZE(bursts)) == sheet->events.size() &&
      sheet->hooked.size() == sheet->first_slot.size();
  if (!fine) PyErr_SetString(PyExc_ValueError, "lists of different lengths");
  for (Py_ssize_t i = 0; fine && i < PyList_GET_SIZE(rows); ++i) {
    sheet->rows.push_back(OperatorOf(PyList_GET_ITEM(rows, i)));
    sheet->specials.emplace_back();
    fine = PyErr_Occurred() == nullptr &&
           ReadSpecial(PyList_GET_ITEM(specials, i), sheet->specials.back());
  }
  for (Py_ssize_t i = 0; fine && i < PyList_GET_SIZE(bursts); ++i) {
    sheet->bursts.emplace_back();
    PyObject* const burst = PyList_GET_ITEM(bursts, i);
    fine = PyTuple_Check(burst) && ReadBurst(burst, sheet->bursts.back());
  }
  if (!fine && !PyErr_Occurred())
    PyErr_SetString(PyExc_TypeError, "a burst is a tuple");
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
  track->book = new Book;
  return reinterpret_cast<PyObject*>(track);
}

void TrackDealloc(PyObject* self) {
  auto* const track = reinterpret_cast<Track*>(self);
  track->book->records.Drop();
  delete track->book;
  Py_DECREF(track->sheet);
  Py_DECREF(track->run);
  Py_TYPE(self)->tp_free(self);
}

// track.hand_over(adopt): adopt(run, nodes, cells, refs) makes the records of
// this step in Python and returns the refs; from here on they are there.
PyObject* HandOver(PyObject* self, PyObject* adopt) {
  HANDLE_TH_ERRORS
  using reprise_fast::Object;
  auto* const track = reinterpret_cast<Track*>(self);
  PyObject* const run = track->Run();
  if (track->handed || run == nullptr) Py_RETURN_NONE;
  if (!CountUp(*track)) return nullptr;
  Book& book = *track->book;
  const std::vector<Ref*> refs(book.refs.begin(), book.refs.end());
  // Python code may let go of some meanwhile.
  const Object held = reprise_fast::ListOf(refs, [](Ref* ref) {
    return Object(Py_NewRef(reinterpret_cast<PyObject*>(ref)));
  });
  reprise_fast::Handover handover(book.records);
  for (const Ref* ref : refs) handover.AddRef(ref->cell);
  const Object records = handover.Show();
  const Object shown = reprise_fast::ListOf(refs, [&](const Ref* ref) {
    return handover.Show(
        {ref->slot, ref->version, ref->cell, ref->geometry, ref->made});
  });
  const Object twins(PyObject_CallFunctionObjArgs(adopt, run, records.get(),
                                                  shown.get(), nullptr));
  if (!PyList_Check(twins.get()) ||
      static_cast<size_t>(PyList_GET_SIZE(twins.get())) != refs.size())
    throw torch::TypeError("one ref for every ref");
  for (size_t i = 0; i < refs.size(); ++i) {
    Ref* const ref = refs[i];
    ref->twin =
        Py_NewRef(PyList_GET_ITEM(twins.get(), static_cast<Py_ssize_t>(i)));
    ref->made.reset();
    reprise_fast::Bury(std::move(ref->cell));
    ref->cell.reset();
  }
  book.refs.clear();
  book.records.Drop();
  track->handed = 1;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// track.burst(event) -> bool: replays what stands before it.
PyObject* Burst(PyObject* self, PyObject* value) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  const size_t event = PyLong_AsSize_t(value);
  if (PyErr_Occurred()) return nullptr;
  if (event >= track->Page().bursts.size())
    throw torch::TypeError("no such event");
  const bool done = RunBurst(*track, event);
  if (!CountUp(*track)) return nullptr;
  return PyBool_FromLong(done);
  END_HANDLE_TH_ERRORS
}

// track.holds(storages) -> bool: does a record hold a tensor on one of them?
PyObject* Holds(PyObject* self, PyObject* storages) {
  const Records& records = reinterpret_cast<Track*>(self)->book->records;
  PyObject* const items = PySequence_Fast(storages, "storages");
  if (items == nullptr) return nullptr;
  bool holds = false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items) && !holds; ++i) {
    holds = records.Holds(PyLong_AsVoidPtr(PySequence_Fast_GET_ITEM(items, i)));
    if (PyErr_Occurred()) break;
  }
  Py_DECREF(items);
  return PyErr_Occurred() ? nullptr : PyBool_FromLong(holds);
}

// track.waits() -> bool: may a record that holds something still be replayed?
PyObject* Waits(PyObject* self, PyObject*) {
  return PyBool_FromLong(reinterpret_cast<Track*>(self)->book->records.Waits());
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
    {"handed", T_BOOL, offsetof(Track, handed), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef track_methods[] = {
    {"pack", Pack, METH_O, "What autograd keeps instead of a saved tensor."},
    {"hand_over", HandOver, METH_O, "The records go to Python."},
    {"burst", Burst, METH_O, "Replays what stands before an event."},
    {"holds", Holds, METH_O, "Does a record hold one of these storages?"},
    {"waits", Waits, METH_NOARGS, "May something still be replayed?"},
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
    {"normalized", PyNormalized, METH_VARARGS, "A batch norm once more."},
    {"normalizes", PyNormalizes, METH_VARARGS, "May it be made so?"},
    {"round_once", RoundOnce, METH_VARARGS, "How it is rounded."},
    {"is_mask", PyIsMask, METH_O, "Can it be kept as bits?"},
    {"bits_of", PyBitsOf, METH_O, "What a mask holds."},
    {"spread_bits", PySpreadBits, METH_VARARGS, "A mask once more."},
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
