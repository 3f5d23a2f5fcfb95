// SPDX-License-Identifier: Apache-2.0
//
// The methods of Track in Python: it is created for a step, asked about its
// records, and told about ops that do not come to the gate.
#ifndef REPRISE_TORCH_COMPILED_TRACK_METHODS_H_
#define REPRISE_TORCH_COMPILED_TRACK_METHODS_H_

#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bound.h"
#include "records.h"
#include "saved.h"
#include "sheet.h"
#include "track.h"

namespace reprise_fast {

// Track(sheet, run): the run is held by a weak reference.
inline PyObject* TrackNew(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *sheet = nullptr, *run = nullptr;
  if (!PyArg_ParseTuple(args, "OO", &sheet, &run)) return nullptr;
  const void* const page = PyCapsule_GetPointer(sheet, nullptr);
  if (page == nullptr) return nullptr;
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
  track->page = static_cast<const Sheet*>(page);
  track->run = weak;
  track->task = -1;
  track->armed = 1;
  track->device = -1;
  track->book = book.release();
  track->book->records.surroundings.Know(track->Page().around);
  return reinterpret_cast<PyObject*>(track);
  END_HANDLE_TH_ERRORS
}

inline void TrackDealloc(PyObject* self) {
  auto* const track = reinterpret_cast<Track*>(self);
  track->book->records.Drop();
  track->Page().around = track->book->records.surroundings.Newest();
  delete track->book;
  Py_DECREF(track->sheet);
  Py_DECREF(track->run);
  Py_XDECREF(track->life);
  Py_TYPE(self)->tp_free(self);
}

// Converts what a Python call returned to the dispatcher's values.
inline Stack StackOf(PyObject* out, const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  Stack stack;
  for (size_t i = 0; i < returns.size(); ++i) {
    PyObject* const item =
        returns.size() == 1 ? out
                            : PyTuple_GetItem(out, static_cast<Py_ssize_t>(i));
    if (item == nullptr) throw python_error();
    stack.push_back(torch::jit::toIValue(item, returns[i].type()));
  }
  return stack;
}

// track.special(row, op) -> result of op.run(). Runs an op that a dispatch mode
// has seen and whose row is recorded or writes. op.args and op.kwargs are its
// arguments.
inline PyObject* RunSeen(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  const Sheet& page = track->Page();
  const auto given = FromPython<std::tuple<size_t, pybind11::object>>(args);
  const size_t row = std::get<0>(given);
  const pybind11::object& seen = std::get<1>(given);
  if (row >= page.rows.size() || !page.specials[row])
    throw torch::TypeError(
        "not a row that records, keeps or discards anything");
  const c10::OperatorHandle& op = page.rows[row];
  // A mode is given a number where the op is called with a tensor made of one.
  const torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  Stack stack = torch::jit::createStackForSchema(
      op.schema(), torch::jit::tuple_slice(Get<pybind11::tuple>(seen, "args")),
      Get<pybind11::kwargs>(seen, "kwargs"), {});
  pybind11::object out;
  const auto run = [&] {
    out = seen.attr("run")();
    stack = StackOf(out.ptr(), op.schema());
  };
  track->book->records.host = track->host;
  Settle(*track, track->book->records.RunSpecial(
                     *page.specials[row], page.row_ops[row], op, stack, run));
  return out.release().ptr();
  END_HANDLE_TH_ERRORS
}

// track.before_write(tensors): records that need the old content get a copy.
inline PyObject* BeforeWrite(PyObject* self, PyObject* tensors) {
  HANDLE_TH_ERRORS
  reinterpret_cast<Track*>(self)->book->records.BeforeWrite(
      FromPython<std::vector<at::Tensor>>(tensors));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// track.written(tensors): a call that is not recorded wrote these tensors.
inline PyObject* Written(PyObject* self, PyObject* tensors) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  if (track->book->records.Written(
          FromPython<std::vector<at::Tensor>>(tensors)))
    track->safe = 1;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// track.burst(number) -> bool: runs a burst of replays. False if they could not
// all run.
inline PyObject* Burst(PyObject* self, PyObject* value) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  const size_t number = PyLong_AsSize_t(value);
  if (PyErr_Occurred()) return nullptr;
  if (number >= track->Page().bursts.size())
    throw torch::TypeError("no such burst");
  const bool done = RunBurst(*track, number);
  CountUp(*track);
  return PyBool_FromLong(done);
  END_HANDLE_TH_ERRORS
}

// track.holds(storages) -> bool: whether a record holds a tensor on one of
// these storages (addresses).
inline PyObject* Holds(PyObject* self, PyObject* storages) {
  HANDLE_TH_ERRORS
  const Records& records = reinterpret_cast<Track*>(self)->book->records;
  const auto found = FromPython<std::vector<std::uintptr_t>>(storages);
  return PyBool_FromLong(
      std::any_of(found.begin(), found.end(), [&](std::uintptr_t storage) {
        return records.Holds(reinterpret_cast<const void*>(storage));
      }));
  END_HANDLE_TH_ERRORS
}

// track.waits() -> bool: whether a record that holds a tensor may still be
// replayed.
inline PyObject* Waits(PyObject* self, PyObject*) {
  return PyBool_FromLong(reinterpret_cast<Track*>(self)->book->records.Waits());
}

// track.on(device): the step runs on this GPU, on its current stream.
inline PyObject* On(PyObject* self, PyObject* value) {
  HANDLE_TH_ERRORS
  auto* const track = reinterpret_cast<Track*>(self);
  const long device = PyLong_AsLong(value);
  if (PyErr_Occurred()) return nullptr;
  track->device = device;
  track->home = track->Stream();
  track->book->records.surroundings.gpu = true;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

inline PyTypeObject track_type = {.ob_base = PyVarObject_HEAD_INIT(nullptr, 0)};

inline PyMemberDef track_members[] = {
    {"next", T_LONGLONG, offsetof(Track, next), 0, nullptr},
    {"slot", T_LONGLONG, offsetof(Track, slot), 0, nullptr},
    {"cursor", T_LONGLONG, offsetof(Track, cursor), 0, nullptr},
    {"task", T_LONGLONG, offsetof(Track, task), 0, nullptr},
    {"host", T_LONGLONG, offsetof(Track, host), 0, nullptr},
    {"here", T_ULONGLONG, offsetof(Track, here), 0, nullptr},
    {"armed", T_BOOL, offsetof(Track, armed), 0, nullptr},
    {"safe", T_BOOL, offsetof(Track, safe), 0, nullptr},
    {"audited", T_BOOL, offsetof(Track, audited), 0, nullptr},
    {"keeps", T_BOOL, offsetof(Track, keeps), 0, nullptr},
    {"life", T_OBJECT, offsetof(Track, life), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

inline PyMethodDef track_methods[] = {
    {"pack", Pack, METH_O, nullptr},
    {"special", REPRISE_ENTRY("Track.special", RunSeen), METH_VARARGS, nullptr},
    {"before_write", REPRISE_ENTRY("Track.before_write", BeforeWrite), METH_O,
     nullptr},
    {"written", REPRISE_ENTRY("Track.written", Written), METH_O, nullptr},
    {"burst", REPRISE_ENTRY("Track.burst", Burst), METH_O, nullptr},
    {"on", REPRISE_ENTRY("Track.on", On), METH_O, nullptr},
    {"holds", REPRISE_ENTRY("Track.holds", Holds), METH_O, nullptr},
    {"waits", REPRISE_ENTRY("Track.waits", Waits), METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_TRACK_METHODS_H_
