// SPDX-License-Identifier: Apache-2.0
//
// Simulated annealing over lists of execs (exec_list.h): the main search.
//
//   drop    a value that spans the current peak is recomputed before its next
//           reader; absent inputs are recomputed too or, if memory allows, kept
//           until then
//   delete  a re-run is removed, with the re-runs that only fed it
//   shift   a re-run moves to just before its first reader, or by a few places
//   insert  a re-run is added before a random reader
//
// A quarter of the steps combine two of these. A list is accepted by the
// Metropolis rule on score.h; the temperature falls geometrically in ticks. A
// step costs O(arity * (block + blocks)), whatever the length of the list.
// Deterministic for a seed.
#pragma once

#include <vector>

#include "planner/model/archive.h"
#include "planner/model/effort.h"
#include "planner/model/problem.h"
#include "planner/model/random.h"
#include "planner/model/score.h"

namespace reprise::planner {

struct LocalSearchOptions {
  int64_t budget_bytes = 0;
  int64_t ticks = 0;  // of this run
  uint64_t seed = 1;
  // Stop once a schedule within the budget takes at most this time.
  int64_t good_enough_ns = 0;
  // First and last temperature as fractions of the base time: 2^-hot ..
  // 2^-cold.
  int hot = 7;
  int cold = 20;
};

// Improves `execs`, which become the best list found; adds it to the archive.
// Returns the number of steps.
int64_t LocalSearch(const Problem& problem, const LocalSearchOptions& options,
                    std::vector<OpId>& execs, Archive& archive, Effort& effort);

}  // namespace reprise::planner
