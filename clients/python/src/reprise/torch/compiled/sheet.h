// SPDX-License-Identifier: Apache-2.0
//
// A program (program.py) as the native engine reads it: what to do at each op,
// which tensors go through the hooks, and what is replayed before each unpack.
// Immutable once it is read, but for `around`.
#ifndef REPRISE_TORCH_COMPILED_SHEET_H_
#define REPRISE_TORCH_COMPILED_SHEET_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ambient.h"
#include "bound.h"

namespace reprise_fast {

// An op that the tape records or that writes an argument (program.Row).
struct Special {
  int64_t replays = 0;  // 0: not recorded
  bool writes = false;
  bool seeded = false;
  bool shortens = false;
  int64_t trains = -1;  // argument: are statistics computed?
  // For a batch norm, the argument index of the running mean; -1: no batch
  // norm.
  int64_t statistics = -1;
  std::optional<c10::OperatorHandle> without_statistics;
  std::vector<int64_t> cells;             // by output: storage id, or -1
  std::vector<int64_t> first_life_reads;  // by tensor argument
  // By output: the storage that is sent to host memory, or -1. Empty: none.
  std::vector<int64_t> parked;
  bool aside = false;  // something is copied next to it: the mode runs it
};

// From here on, the op of a replay is a storage that comes back from host
// memory (program.FETCHED).
constexpr int64_t kFetched = int64_t{1} << 40;

// One replay of a burst: the op, and the storages to keep from its outputs with
// the number of uses of each.
struct Replay {
  int64_t op = 0;
  std::vector<std::pair<int64_t, int64_t>> keep;  // storage, uses
};

// A slot is a saved tensor, in the order of packing. An event is an unpack
// before which something may be replayed, and its burst is what is replayed.
// Window i is what autograd saves between op i - 1 and op i.
struct Sheet {
  std::vector<c10::OperatorHandle> rows;
  std::vector<std::optional<Special>> specials;  // by row; none: only passes
  std::vector<uint8_t> given_up;                 // by slot
  std::vector<int64_t> events;                   // slots; -1: the run is asked
  std::vector<int64_t> event_bursts;             // before it; -1: none
  std::vector<std::vector<Replay>> bursts;
  // By row and by event: the op of the step graph that begins there.
  std::vector<int64_t> row_ops;
  std::vector<int64_t> event_ops;
  std::vector<int64_t> versions;  // by slot: the one its unpack finds
  // By slot: the number of unpacks that find the tensor as it was saved, before
  // it is discarded. Empty: none do.
  std::vector<int64_t> firsts;
  // By window: whether it goes through the hooks, and its first slot. Empty:
  // all windows do.
  std::vector<uint8_t> hooked;
  std::vector<int64_t> first_slot;
  // The newest state in which ops of the latest step were recorded. The next
  // step is in the same one as a rule, and need not ask Python for it.
  mutable std::shared_ptr<const Surroundings::State> around;
};

// ---- Reading it from Python ---------------------------------------------------

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

// Reads a program: by row the name of the operator, and what is known of it if
// the row is special; by window whether it goes through the hooks, and its first
// slot.
inline pybind11::capsule SheetOf(const pybind11::object& program,
                                 const std::vector<Name>& names,
                                 const std::vector<std::optional<Facts>>& facts,
                                 const std::vector<uint8_t>& hooked,
                                 const Numbers& first_slot) {
  auto sheet = std::make_unique<Sheet>();
  sheet->given_up = Get<std::vector<uint8_t>>(program, "slots");
  sheet->hooked = hooked;
  sheet->first_slot = first_slot;
  sheet->versions = Get<Numbers>(program, "versions");
  sheet->firsts = Get<Numbers>(program, "firsts");
  for (const pybind11::handle row : program.attr("rows")) {
    const size_t at = sheet->rows.size();
    sheet->rows.push_back(OperatorOf(names.at(at)));
    sheet->row_ops.push_back(Get<int64_t>(row, "op"));
    sheet->specials.emplace_back();
    if (facts.at(at)) sheet->specials.back() = SpecialOf(row, *facts[at]);
  }
  for (const pybind11::handle burst : program.attr("bursts"))
    sheet->bursts.push_back(BurstOf(burst));
  for (const pybind11::handle event : program.attr("events")) {
    // Where more happens than replays, the run (tape_run.py) is asked.
    const bool copies = Get<bool>(event, "copies");
    const pybind11::tuple parts = event.attr("parts");
    const bool replays = !copies && !parts.empty();
    sheet->events.push_back(copies ? -1 : Get<int64_t>(event, "slot"));
    sheet->event_bursts.push_back(replays ? parts[0].cast<int64_t>() : -1);
    sheet->event_ops.push_back(Get<int64_t>(event, "op"));
  }
  const size_t slots = sheet->given_up.size();
  bool fits = sheet->versions.size() == slots &&
              (sheet->firsts.empty() || sheet->firsts.size() == slots) &&
              hooked.size() == first_slot.size();
  for (const int64_t burst : sheet->event_bursts)
    fits = fits && burst < static_cast<int64_t>(sheet->bursts.size());
  TORCH_CHECK_VALUE(fits, "the parts of a program do not fit together");
  return {sheet.release(),
          [](void* self) { delete static_cast<Sheet*>(self); }};
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_SHEET_H_
