// SPDX-License-Identifier: Apache-2.0
//
// Builds a sheet from a program (program.py) and from what native_program.py
// has found out about it.
#ifndef REPRISE_TORCH_COMPILED_SHEET_READER_H_
#define REPRISE_TORCH_COMPILED_SHEET_READER_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bound.h"
#include "sheet.h"
#include "track.h"

namespace reprise_fast {

// An operator and its overload: "aten::add", "Tensor".
using Name = std::pair<std::string, std::string>;
using Numbers = std::vector<int64_t>;

// What is known of the operator of a row that is special: the argument that
// says whether statistics are computed, that of the running mean, the operator
// without it, and whether something is copied next to the row.
using Facts = std::tuple<int64_t, int64_t, std::optional<Name>, bool>;

// Returns an attribute of an object in Python.
template <typename T>
T Get(const pybind11::handle& object, const char* name) {
  return object.attr(name).cast<T>();
}

// Returns an operator. Raises LookupError if torch has none of this name.
inline c10::OperatorHandle OperatorOf(const Name& name) {
  const auto found =
      c10::Dispatcher::singleton().findOp({name.first, name.second});
  if (!found.has_value()) {
    PyErr_Format(PyExc_LookupError, "no operator %s.%s", name.first.c_str(),
                 name.second.c_str());
    throw python_error();
  }
  return *found;
}

// Reads a program.Row that is not plain.
inline Special SpecialOf(const pybind11::handle& row, const Facts& facts) {
  Special special;
  special.replays = Get<int64_t>(row, "replays");
  special.writes = Get<bool>(row, "writes");
  special.seeded = Get<bool>(row, "seeded");
  special.shortens = Get<bool>(row, "short");
  special.cells = Get<Numbers>(row, "cells");
  special.first_life_reads = Get<Numbers>(row, "first_life_reads");
  special.parked = Get<Numbers>(row, "parked");
  const auto& [trains, statistics, without, aside] = facts;
  special.trains = trains;
  special.statistics = statistics;
  if (without) special.without_statistics = OperatorOf(*without);
  special.aside = aside;
  return special;
}

// Reads a burst of program.Replay.
inline std::vector<Replay> BurstOf(const pybind11::handle& replays) {
  std::vector<Replay> burst;
  for (const pybind11::handle replay : replays)
    burst.push_back({Get<int64_t>(replay, "op"),
                     pybind11::list(replay.attr("keep").attr("items")())
                         .cast<decltype(Replay::keep)>()});
  return burst;
}

// Sheet(program, names, facts, events, hooked, first_slot): by row the name of
// the operator, and what is known of it if the row is special; the slots of the
// events, or -1 where more happens than replays; by window whether it goes
// through the hooks, and its first slot.
inline PyObject* SheetNew(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  const auto [program, names, facts, events, hooked, first_slot] =
      FromPython<std::tuple<pybind11::object, std::vector<Name>,
                            std::vector<std::optional<Facts>>, Numbers,
                            std::vector<uint8_t>, Numbers>>(args);
  auto sheet = std::make_unique<Sheet>();
  sheet->given_up = Get<std::vector<uint8_t>>(program, "slots");
  sheet->events = events;
  sheet->hooked = hooked;
  sheet->first_slot = first_slot;
  sheet->event_ops = Get<Numbers>(program, "event_ops");
  sheet->versions = Get<Numbers>(program, "versions");
  sheet->firsts = Get<Numbers>(program, "firsts");
  for (const pybind11::handle row : program.attr("rows")) {
    const size_t at = sheet->rows.size();
    sheet->rows.push_back(OperatorOf(names.at(at)));
    sheet->row_ops.push_back(Get<int64_t>(row, "op"));
    sheet->specials.emplace_back();
    if (facts.at(at)) sheet->specials.back() = SpecialOf(row, *facts[at]);
  }
  for (const char* const all : {"bursts", "pieces"})
    for (const pybind11::handle burst : program.attr(all))
      sheet->bursts.push_back(BurstOf(burst));
  PyObject* const made = type->tp_alloc(type, 0);
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
