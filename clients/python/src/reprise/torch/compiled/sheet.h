// SPDX-License-Identifier: Apache-2.0
//
// A program (program.py) as the native engine reads it: what to do at each op,
// which tensors go through the hooks, and what is replayed before each unpack.
// Immutable once it is read (sheet_reader.h), but for `around`.
#ifndef REPRISE_TORCH_COMPILED_SHEET_H_
#define REPRISE_TORCH_COMPILED_SHEET_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ambient.h"

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
  std::vector<int64_t> events;                   // slots
  std::vector<std::vector<Replay>> bursts;       // by event; then pieces
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

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_SHEET_H_
