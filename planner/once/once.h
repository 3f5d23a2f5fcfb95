// SPDX-License-Identifier: Apache-2.0
//
// Executors of kind `once`: forward and backward in base order, and a set of
// saved storages.
//
// The forward keeps what is saved; what may not be recomputed, or what the
// program holds into the backward, is saved whatever the set says. At a backward
// op that needs something that is not there, it runs again, with what is missing
// for it, in base order, and stays until its last reader. Re-runs whose results
// are not read are left out (list_moves.h). No op runs more than twice.
//
//   saved x0, x3    op 0, op 1, op 2, op 3, op 4, [op 1, op 2], op 5, ...
//                   op 5 reads x2, which needs x1
//
// A schedule shows what was saved: what is read after the forward before
// anything makes it again. So a plan is its schedule, and the referee derives
// the set and replays it.
//
// Everything here is O(execs + arities), and O(n log n) in the n ops that run
// again for one reader.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// By storage: whether it is saved.
using SavedSet = std::vector<uint8_t>;

// Returns the execs under a set; empty if the executor cannot run it.
std::vector<OpId> OnceExecs(const Problem& problem, const SavedSet& saved);

// Returns the set that valid execs, the whole forward first, show.
SavedSet SavedIn(const Problem& problem, std::span<const OpId> execs);

// The evaluator for these executors: evaluates the schedule. INVALID_ARGUMENT
// unless there is a set under which they run it.
StatusOr<Evaluation> EvaluateOnce(const Problem& problem,
                                  std::span<const Entry> schedule);

}  // namespace reprise::planner
