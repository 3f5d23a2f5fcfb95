// SPDX-License-Identifier: Apache-2.0
//
// A track from Python: made for a step, asked about its records, told to hand
// them over.
#ifndef REPRISE_TORCH_COMPILED_TRACK_METHODS_H_
#define REPRISE_TORCH_COMPILED_TRACK_METHODS_H_

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <structmember.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <utility>
#include <vector>

#include "handover.h"
#include "inject.h"
#include "records.h"
#include "saved.h"
#include "sheet_reader.h"
#include "track.h"

namespace reprise_fast {

inline PyObject* TrackNew(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *sheet = nullptr, *run = nullptr;
  if (!PyArg_ParseTuple(args, "O!O", &sheet_type, &sheet, &run)) return nullptr;
  auto book = std::make_unique<Book>();
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
  track->device = -1;
  track->book = book.release();
  return reinterpret_cast<PyObject*>(track);
  END_HANDLE_TH_ERRORS
}

inline void TrackDealloc(PyObject* self) {
  auto* const track = reinterpret_cast<Track*>(self);
  track->book->records.Drop();
  delete track->book;
  Py_DECREF(track->sheet);
  Py_DECREF(track->run);
  Py_TYPE(self)->tp_free(self);
}

// track.hand_over(adopt): adopt(run, nodes, cells, refs) makes the records of
// this step in Python and returns the refs; from here on they are there.
inline PyObject* HandOver(PyObject* self, PyObject* adopt) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  PyObject* const run = track->Run();
  if (track->handed || run == nullptr) Py_RETURN_NONE;
  if (!CountUp(*track)) return nullptr;
  Book& book = *track->book;
  const std::vector<Ref*> refs(book.refs.begin(), book.refs.end());
  // Python code may let go of some meanwhile.
  const Object held = ListOf(refs, [](Ref* ref) {
    return Object(Py_NewRef(reinterpret_cast<PyObject*>(ref)));
  });
  Handover handover(book.records);
  for (const Ref* ref : refs) handover.AddRef(ref->cell);
  const Object records = handover.Show();
  const Object shown = ListOf(refs, [&](const Ref* ref) {
    return handover.Show({ref->slot, ref->version, ref->cell, ref->geometry,
                          ref->made, ref->given, ref->firsts, ref->stale});
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
    Bury(std::move(ref->cell));
    ref->cell.reset();
  }
  book.refs.clear();
  book.records.Drop();
  track->handed = 1;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// track.burst(event) -> bool: replays what stands before it.
inline PyObject* Burst(PyObject* self, PyObject* value) {
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
inline PyObject* Holds(PyObject* self, PyObject* storages) {
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
inline PyObject* Waits(PyObject* self, PyObject*) {
  return PyBool_FromLong(reinterpret_cast<Track*>(self)->book->records.Waits());
}

// track.compared() -> (count, slots that differ), since it was asked last.
inline PyObject* Compared(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  Book& book = *reinterpret_cast<Track*>(self)->book;
  const Object count = Shown(std::exchange(book.compared, 0));
  const Object slots = ListOf(std::exchange(book.differing, {}),
                              [](int64_t slot) { return Shown(slot); });
  return TupleOf(count, slots).Release();
  END_HANDLE_TH_ERRORS
}

// track.on(device): on this GPU, and on its stream of now.
inline PyObject* On(PyObject* self, PyObject* value) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  const long device = PyLong_AsLong(value);
  if (PyErr_Occurred()) return nullptr;
  track->device = device;
  track->home = track->Stream();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

inline PyTypeObject track_type = {.ob_base = PyVarObject_HEAD_INIT(nullptr, 0)};

inline PyMemberDef track_members[] = {
    {"next", T_LONGLONG, offsetof(Track, next), 0, nullptr},
    {"slot", T_LONGLONG, offsetof(Track, slot), 0, nullptr},
    {"cursor", T_LONGLONG, offsetof(Track, cursor), 0, nullptr},
    {"task", T_LONGLONG, offsetof(Track, task), 0, nullptr},
    {"here", T_ULONGLONG, offsetof(Track, here), 0, nullptr},
    {"armed", T_BOOL, offsetof(Track, armed), 0, nullptr},
    {"safe", T_BOOL, offsetof(Track, safe), 0, nullptr},
    {"audited", T_BOOL, offsetof(Track, audited), 0, nullptr},
    {"handed", T_BOOL, offsetof(Track, handed), 0, nullptr},
    {"keeps", T_BOOL, offsetof(Track, keeps), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

inline PyMethodDef track_methods[] = {
    {"pack", Pack, METH_O, "What autograd keeps instead of a saved tensor."},
    {"hand_over", REPRISE_ENTRY("Track.hand_over", HandOver), METH_O,
     "The records go to Python."},
    {"burst", REPRISE_ENTRY("Track.burst", Burst), METH_O,
     "Replays what stands before an event."},
    {"on", REPRISE_ENTRY("Track.on", On), METH_O,
     "It begins on a GPU, on the stream of now."},
    {"holds", REPRISE_ENTRY("Track.holds", Holds), METH_O,
     "Does a record hold one of these storages?"},
    {"compared", REPRISE_ENTRY("Track.compared", Compared), METH_NOARGS,
     "What comparing has found since."},
    {"waits", REPRISE_ENTRY("Track.waits", Waits), METH_NOARGS,
     "May something still be replayed?"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_TRACK_METHODS_H_
