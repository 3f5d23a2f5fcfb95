// SPDX-License-Identifier: Apache-2.0
//
// A program (program.py) as the native engine reads it: what every op is, what
// goes through the hooks, what is replayed before an unpack. Never changes once
// it is read (sheet_reader.h).
#ifndef REPRISE_TORCH_COMPILED_SHEET_H_
#define REPRISE_TORCH_COMPILED_SHEET_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace reprise_fast {

// A row that has something to do (program.Row).
struct Special {
  int64_t replays = 0;  // 0: not recorded
  bool writes = false;
  bool seeded = false;
  bool shortens = false;
  int64_t trains = -1;  // argument that says whether statistics are computed
  // Of a batch norm: where its running statistics stand; -1: it is none.
  int64_t statistics = -1;
  std::optional<c10::OperatorHandle> without_statistics;
  std::vector<int64_t> cells;             // by output
  std::vector<int64_t> first_life_reads;  // by tensor argument
};

struct Replay {
  int64_t op = 0;
  std::vector<std::pair<int64_t, int64_t>> keep;  // storage, uses
};

struct Sheet {
  std::vector<std::optional<c10::OperatorHandle>> rows;
  std::vector<std::optional<Special>> specials;  // by row; none: let through
  std::vector<char> given_up;                    // by slot
  std::vector<int64_t> events;                   // slots
  std::vector<char> quiet;  // by event: nothing is replayed before it
  std::vector<std::vector<Replay>> bursts;  // by event
  // By row and by event: the op of the step graph that begins.
  std::vector<int64_t> row_ops;
  std::vector<int64_t> event_ops;
  std::vector<int64_t> versions;  // by slot: that its unpack finds
  // By slot: unpacks that find it as it was saved. Empty: there are none.
  std::vector<int64_t> firsts;
  // By window: does it go through the hooks, and its first slot. Empty: all do.
  std::vector<char> hooked;
  std::vector<int64_t> first_slot;
};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_SHEET_H_
