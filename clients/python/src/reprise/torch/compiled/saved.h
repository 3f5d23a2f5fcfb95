// SPDX-License-Identifier: Apache-2.0
//
// The saved-tensor hooks of a step.
//
//   pack     keeps a tensor that the plan saves (Kept), or discards it and
//            keeps a reference for its recomputation (Ref)
//   unpack   runs the replays planned before it and returns the tensor
//
// Where the step differs from the plan, the run (tape_run.py) is told, and the
// tensor is saved, or recomputed on demand. An internal error has the same
// effect and is reported (fault.h).
#ifndef REPRISE_TORCH_COMPILED_SAVED_H_
#define REPRISE_TORCH_COMPILED_SAVED_H_

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/gil.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <string>
#include <utility>

#include "below.h"
#include "cells.h"
#include "fault.h"
#include "records.h"
#include "sheet.h"
#include "track.h"

namespace torch::autograd {
int get_current_graph_task_id();
}

namespace reprise_fast {

inline PyObject* python_unpack = nullptr;  // for what Python packed
// Python functions that raise for (tensor, expected version): for a saved
// tensor that was modified, and for one that a recorded call reads.
inline PyObject* python_stale = nullptr;
inline PyObject* python_modified = nullptr;

inline PyTypeObject kept_type = {.ob_base = PyVarObject_HEAD_INIT(nullptr, 0)};
inline PyTypeObject ref_type = {.ob_base = PyVarObject_HEAD_INIT(nullptr, 0)};

// Returns an alias of `tensor` without its autograd graph, made where no mode
// or gate sees it.
inline at::Tensor SavedAlias(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(
      DispatchKeySet(DispatchKey::Python) |
      DispatchKeySet(DispatchKey::PythonTLSSnapshot) | DispatchKeySet(kGate));
  return tensor.detach();
}

// Discards a tensor: returns the Ref that autograd keeps instead. Returns null
// without a Python error if this is not the tensor of the captured step.
inline PyObject* GiveUp(Track& track, PyObject* run, PyObject* value) {
  const at::Tensor& tensor = THPVariable_Unpack(value);
  Records& records = track.book->records;
  CellPtr cell = records.marks().CellOf(tensor);
  if (!cell || cell->dtype != tensor.scalar_type() || !cell->IsWhole())
    return nullptr;
  const Sheet& page = track.Page();
  const auto slot = static_cast<size_t>(track.slot);
  const int64_t firsts = page.firsts.empty() ? 0 : page.firsts[slot];
  at::Tensor saved;
  if (firsts > 0) saved = SavedAlias(tensor);
  const int64_t version =
      std::max<int64_t>(cell->Length(), page.versions[slot]);
  // If the storage will still be written, its content now is not what the
  // unpack will return, so it is not compared.
  THPObjectPtr given;
  if (track.audited != 0 && version == cell->Length()) {
    given = PyObject_CallMethod(run, "given", "O", value);
    if (!given) return nullptr;
  }
  Geometry geometry = GeometryOf(tensor);
  auto* const ref = PyObject_New(Ref, &ref_type);
  if (ref == nullptr) return nullptr;
  new (&ref->cell) CellPtr(std::move(cell));
  new (&ref->geometry) Geometry(std::move(geometry));
  new (&ref->made) at::Tensor(std::move(saved));
  ref->given = given.release();
  ref->track =
      reinterpret_cast<Track*>(Py_NewRef(reinterpret_cast<PyObject*>(&track)));
  ref->run = Py_NewRef(run);
  ref->life = Py_XNewRef(track.life);
  ref->slot = track.slot;
  ref->firsts = firsts;
  ref->stale = firsts > 0 ? ref->made._version() : 0;
  ref->version = version;
  ++track.book->refs;
  try {
    ref->cell->Wait(version);
  } catch (...) {
    Py_DECREF(ref);
    throw;
  }
  ++track.slot;
  ++records.dropped;
  return reinterpret_cast<PyObject*>(ref);
}

inline void RefDealloc(PyObject* self) {
  auto* const ref = reinterpret_cast<Ref*>(self);
  Book& book = *ref->track->book;
  --book.refs;
  ref->made.~Tensor();
  Py_XDECREF(ref->given);
  if (ref->cell) Bury(std::move(ref->cell));
  ref->cell.~CellPtr();
  ref->geometry.~Geometry();
  // The last Ref is gone: remove the cells that nothing refers to.
  if (book.refs == 0) book.records.Sweep(true);
  Py_DECREF(ref->run);
  Py_XDECREF(ref->life);
  Py_DECREF(ref->track);
  Py_TYPE(self)->tp_free(self);
}

// Returns a Kept with an alias of the tensor, or null with a Python error.
inline PyObject* Keep(Track& track, PyObject* value, long long slot) {
  auto* const kept = PyObject_New(Kept, &kept_type);
  if (kept == nullptr) return nullptr;
  new (&kept->tensor) at::Tensor();
  kept->track =
      reinterpret_cast<Track*>(Py_NewRef(reinterpret_cast<PyObject*>(&track)));
  kept->life = Py_XNewRef(track.life);
  kept->slot = slot;
  try {
    kept->tensor = SavedAlias(THPVariable_Unpack(value));
    kept->version = kept->tensor._version();
  } catch (...) {
    Py_DECREF(kept);
    throw;
  }
  return reinterpret_cast<PyObject*>(kept);
}

// Packs a tensor as planned. A failure of ours may leave a Python error.
inline PyObject* PackAsPlanned(PyObject* self, PyObject* value) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  const Sheet& page = track->Page();
  const auto slot = static_cast<size_t>(track->slot);
  const bool gives_up =
      track->armed && slot < page.given_up.size() && page.given_up[slot];
  if (!gives_up && THPVariable_CheckExact(value))
    return Keep(*track, value,
                track->armed ? track->slot++ : (++track->slot, -1));
  PyObject* const run = track->Run();
  if (run == nullptr) {
    PyErr_SetString(PyExc_RuntimeError,
                    "a tensor was saved in a step that has ended");
    return nullptr;
  }
  if (gives_up && THPVariable_Check(value)) {
    PyObject* const ref = GiveUp(*track, run, value);
    if (ref != nullptr || PyErr_Occurred()) return ref;
  }
  return PyObject_CallMethod(run, gives_up ? "differs" : "keep", "OL", value,
                             track->slot++);
  END_HANDLE_TH_ERRORS
}

// The pack hook: returns what autograd keeps in place of `value`. After an
// internal error it saves the tensor, and the step discards nothing more.
inline PyObject* Pack(PyObject* self, PyObject* value) {
  HANDLE_TH_ERRORS
  PyObject* const packed = PackAsPlanned(self, value);
  if (packed != nullptr || !Reported()) return packed;
  auto* const track = reinterpret_cast<Track*>(self);
  track->armed = 0;
  // For a tensor subclass return the tensor itself: autograd hands it out again
  // as it is.
  return THPVariable_CheckExact(value) ? Keep(*track, value, -1)
                                       : Py_NewRef(value);
  END_HANDLE_TH_ERRORS
}

// Runs a burst of replays, without the GIL. Returns false if they could not all
// run.
inline bool RunBurst(Track& track, size_t number) {
  bool done = false;
  {
    const pybind11::gil_scoped_release released;
    done = track.book->records.Run(track.Page().bursts[number]);
  }
  return done;
}

// Runs the replays planned before the unpack of a slot. If the slot is not the
// next event of this backward, the run decides what to do: this may be another
// backward, or one in another order.
inline void Advance(Track& track, long long slot) {
  if (track.safe) return;
  const Sheet& page = track.Page();
  const auto at = static_cast<size_t>(track.cursor);
  if (at < page.events.size() && page.events[at] == slot &&
      track.task == torch::autograd::get_current_graph_task_id()) {
    ++track.cursor;
    if (track.armed) track.Say(page.event_ops[at]);
    const int64_t burst = page.event_bursts[at];
    if (burst < 0) return;
    if (!RunBurst(track, static_cast<size_t>(burst))) track.safe = 1;
    CountUp(track);
    return;
  }
  PyObject* const run = track.Run();
  if (run == nullptr) return;
  const THPObjectPtr done(PyObject_CallMethod(run, "advance", "L", slot));
  if (!done) throw python_error();
}

// Compares a recomputed tensor with the discarded one. Returns the tensor to
// hand out.
inline at::Tensor Compared(Ref& ref, const at::Tensor& made) {
  THPObjectPtr tensor(THPVariable_Wrap(made));
  if (!tensor) throw python_error();
  THPObjectPtr found(PyObject_CallMethod(ref.run, "compared", "LOOL", ref.slot,
                                         tensor.get(), ref.given,
                                         static_cast<long long>(ref.cell->id)));
  if (ref.track->keeps == 0) Py_CLEAR(ref.given);
  if (!found) throw python_error();
  return THPVariable_Unpack(found.get());
}

// Calls `how`, which raises for a tensor and the version that was expected of
// it, and throws that.
[[noreturn]] inline void Refuse(PyObject* how, const at::Tensor& t,
                                uint32_t version) {
  const THPObjectPtr tensor(THPVariable_Wrap(t));
  if (tensor)
    Py_XDECREF(PyObject_CallFunction(how, "OI", tensor.get(), version));
  throw python_error();
}

// Returns the tensor as it was saved; the last of these unpacks releases it.
// Refuses one that was modified.
inline PyObject* TakeAsSaved(Ref& ref) {
  if (ref.made._version() != ref.stale)
    Refuse(python_stale, ref.made, ref.stale);
  PyObject* const tensor = THPVariable_Wrap(ref.made);
  if (tensor == nullptr) return nullptr;
  if (ref.track->safe == 0 && --ref.firsts == 0) ref.made.reset();
  return tensor;
}

// Returns the copy of the cell of a Ref: the one in memory, or one recomputed
// on demand.
inline at::Tensor CopyFor(Ref& ref) {
  const CellPtr& cell = ref.cell;
  Track& track = *ref.track;
  // A program that left the plan may have written the storage fewer times.
  const int64_t version = std::min(ref.version, cell->Length());
  if (cell->tensor.defined() && cell->version == version) return cell->tensor;
  track.safe = 1;
  at::Tensor made;
  try {
    const pybind11::gil_scoped_release released;
    made = track.book->records.MakeOnDemand(cell, version);
  } catch (const ModifiedInput& input) {
    Refuse(python_modified, input.tensor, input.expected);
  }
  CountUp(track);
  return made;
}

// Returns the tensor that a Ref stands for, once the replays before its unpack
// have run.
inline PyObject* Take(Ref& ref) {
  Track& track = *ref.track;
  if (ref.firsts > 0) return TakeAsSaved(ref);
  Cell& cell = *ref.cell;
  if (ref.made.defined()) {
    if (track.safe == 0) cell.Use();
    return THPVariable_Wrap(ref.made);
  }
  at::Tensor made = track.book->records.ViewAlone(CopyFor(ref), ref.geometry);
  if (ref.given != nullptr && track.audited != 0) made = Compared(ref, made);
  if (track.safe == 0) {
    // If the graph is kept, a later backward unpacks this slot again and takes
    // the copy that the plan has for it then.
    if (track.keeps == 0) {
      ref.made = made;
      cell.Waited(ref.version);
    }
    cell.Use();
  }
  return THPVariable_Wrap(made);
}

// Take, with C++ exceptions turned into Python errors.
inline PyObject* TakeGuarded(Ref& ref) {
  HANDLE_TH_ERRORS
  return Take(ref);
  END_HANDLE_TH_ERRORS
}

// Recomputes a discarded tensor on demand after an internal error. Makes two
// attempts, because one may fail for lack of memory.
inline PyObject* Rescue(Ref& ref) {
  ref.track->safe = 1;
  std::string why;
  for (int tried = 0; tried < 2; ++tried) {
    PyObject* const found = TakeGuarded(ref);
    if (found != nullptr || !Reported(&why)) return found;
  }
  PyErr_Format(PyExc_RuntimeError,
               "a saved tensor that the plan discarded cannot be recomputed "
               "(%s): an internal error in Reprise, please report it; set "
               "REPRISE_DISABLE=1 to train without it",
               why.c_str());
  return nullptr;
}

// Runs the replays before an unpack; returns the tensor of a Ref, or None for a
// Kept.
inline PyObject* UnpackAsPlanned(PyObject* packed) {
  HANDLE_TH_ERRORS
  if (Py_TYPE(packed) == &ref_type) {
    Ref& ref = *reinterpret_cast<Ref*>(packed);
    Advance(*ref.track, ref.slot);
    return Take(ref);
  }
  auto* const kept = reinterpret_cast<Kept*>(packed);
  Advance(*kept->track, kept->slot);
  return Py_NewRef(Py_None);
  END_HANDLE_TH_ERRORS
}

// unpack(packed) -> tensor: the unpack hook. Raises if the tensor was modified
// in place since it was saved.
inline PyObject* Unpack(PyObject*, PyObject* packed) {
  HANDLE_TH_ERRORS
  if (Py_TYPE(packed) != &ref_type && Py_TYPE(packed) != &kept_type)
    return PyObject_CallFunctionObjArgs(python_unpack, packed, nullptr);
  PyObject* const found = UnpackAsPlanned(packed);
  if (found == nullptr && !Reported()) return nullptr;
  if (Py_TYPE(packed) == &ref_type)
    return found != nullptr ? found : Rescue(*reinterpret_cast<Ref*>(packed));
  Py_XDECREF(found);
  auto* const kept = reinterpret_cast<Kept*>(packed);
  if (kept->tensor._version() != kept->version)
    Refuse(python_stale, kept->tensor, kept->version);
  return THPVariable_Wrap(kept->tensor);
  END_HANDLE_TH_ERRORS
}

inline void KeptDealloc(PyObject* self) {
  auto* const kept = reinterpret_cast<Kept*>(self);
  kept->tensor.~Tensor();
  Py_XDECREF(kept->life);
  Py_DECREF(kept->track);
  Py_TYPE(self)->tp_free(self);
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_SAVED_H_
