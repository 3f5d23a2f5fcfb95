// SPDX-License-Identifier: Apache-2.0
//
// Builds a sheet from what native_program.py passes, and checks that its parts
// fit together.
#ifndef REPRISE_TORCH_COMPILED_SHEET_READER_H_
#define REPRISE_TORCH_COMPILED_SHEET_READER_H_

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sheet.h"
#include "track.h"

namespace reprise_fast {

// Returns the operator of a row ("aten::add", "Tensor"), or nothing with a
// Python error if torch has no such operator.
inline std::optional<c10::OperatorHandle> OperatorOf(PyObject* row) {
  const char *name = nullptr, *overload = nullptr;
  if (!PyArg_ParseTuple(row, "ss", &name, &overload)) return std::nullopt;
  auto found = c10::Dispatcher::singleton().findOp({name, overload});
  if (!found.has_value())
    PyErr_Format(PyExc_LookupError, "no operator %s.%s", name, overload);
  return found;
}

// Returns the numbers in a tuple; check PyErr_Occurred afterwards.
inline std::vector<int64_t> Numbers(PyObject* tuple) {
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
    found.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  return found;
}

// Reads (replays, writes, seeded, shortens, trains, statistics, without, cells,
// reads, parked, aside), where `without` is a row; None leaves `to` empty. Returns false with
// a Python error.
inline bool ReadSpecial(PyObject* item, std::optional<Special>& to) {
  if (item == Py_None) return true;
  Special row;
  long long replays, trains, statistics;
  int writes, seeded, shortens;
  int aside;
  PyObject *without, *cells, *reads, *parked;
  if (!PyArg_ParseTuple(item, "LpppLLOO!O!O!p", &replays, &writes, &seeded,
                        &shortens, &trains, &statistics, &without,
                        &PyTuple_Type, &cells, &PyTuple_Type, &reads,
                        &PyTuple_Type, &parked, &aside))
    return false;
  row.replays = replays;
  row.trains = trains;
  row.statistics = statistics;
  row.writes = writes != 0;
  row.seeded = seeded != 0;
  row.shortens = shortens != 0;
  row.cells = Numbers(cells);
  row.first_life_reads = Numbers(reads);
  row.parked = Numbers(parked);
  row.aside = aside != 0;
  if (without != Py_None) row.without_statistics = OperatorOf(without);
  to = std::move(row);
  return PyErr_Occurred() == nullptr;
}

// Reads a burst: a tuple of (op, ((storage, uses), ...)). Returns false with a
// Python error.
inline bool ReadBurst(PyObject* item, std::vector<Replay>& to) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(item); ++i) {
    long long op;
    PyObject* keep;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(item, i), "LO!", &op, &PyTuple_Type,
                          &keep))
      return false;
    Replay replay{op, {}};
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
// row_ops, event_ops, versions, firsts). `rows` is a list of (name, overload);
// `specials` and `bursts` are lists as read above. events, first_slot, row_ops,
// event_ops, versions and firsts are bytes of int64; given_up, quiet and hooked
// are bytes of 0 and 1.
inline PyObject* SheetNew(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *rows = nullptr, *specials = nullptr, *bursts = nullptr;
  struct Buffer : Py_buffer {
    Buffer() : Py_buffer{} {}
    ~Buffer() { PyBuffer_Release(this); }  // only once; no-op if empty
  };
  Buffer given_up, events, quiet, hooked, first_slot, row_ops, event_ops,
      versions, firsts;
  if (!PyArg_ParseTuple(args, "O!O!O!y*y*y*y*y*y*y*y*y*", &PyList_Type, &rows,
                        &PyList_Type, &specials, &PyList_Type, &bursts,
                        &given_up, &events, &quiet, &hooked, &first_slot,
                        &row_ops, &event_ops, &versions, &firsts))
    return nullptr;
  auto sheet = std::make_unique<Sheet>();
  const auto copy = [](const Py_buffer& from, auto& to) {
    to.resize(static_cast<size_t>(from.len) / sizeof(to[0]));
    std::memcpy(to.data(), from.buf, to.size() * sizeof(to[0]));
  };
  copy(given_up, sheet->given_up);
  copy(events, sheet->events);
  copy(quiet, sheet->quiet);
  copy(hooked, sheet->hooked);
  copy(first_slot, sheet->first_slot);
  copy(row_ops, sheet->row_ops);
  copy(event_ops, sheet->event_ops);
  copy(versions, sheet->versions);
  copy(firsts, sheet->firsts);
  const auto count = static_cast<size_t>(PyList_GET_SIZE(rows));
  bool fine =
      sheet->quiet.size() == sheet->events.size() &&
      sheet->event_ops.size() == sheet->events.size() &&
      sheet->row_ops.size() == count &&
      sheet->versions.size() == sheet->given_up.size() &&
      (sheet->firsts.empty() ||
       sheet->firsts.size() == sheet->given_up.size()) &&
      static_cast<size_t>(PyList_GET_SIZE(specials)) == count &&
      static_cast<size_t>(PyList_GET_SIZE(bursts)) >= sheet->events.size() &&
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
  if (made == nullptr) return nullptr;
  reinterpret_cast<SheetObject*>(made)->sheet = sheet.release();
  return made;
  END_HANDLE_TH_ERRORS
}

inline void SheetDealloc(PyObject* self) {
  delete reinterpret_cast<SheetObject*>(self)->sheet;
  Py_TYPE(self)->tp_free(self);
}

inline PyTypeObject sheet_type = {.ob_base = PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_SHEET_READER_H_
