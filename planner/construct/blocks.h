// SPDX-License-Identifier: Apache-2.0
//
// Repeated blocks: stretches of the base order in which the same block repeats,
// such as the layers of a transformer and their backward.
//
//   ops     0 1 | 2 3 4 5 | 2 3 4 5 | 2 3 4 5 | 6 | 7 8 9 | 7 8 9 | 7 8 9
//                 run 0: period 4, 3 instances      run 1: period 3,
//                 forward                           3 instances, backward
//
// Two ops correspond if their kind, phase, name, workspace, state and the bytes
// of everything they read, write and mutate are equal, and their times differ
// by at most a quarter (measured times are never equal). An instance repeats
// the previous one if its ops do, position by position, and if what they read
//
//   was made one period later (inside the block or by the block before),
//   is the same value (a mask, an embedding),
//   or was made by another run, at the same position of the neighbouring
//     instance: the backward of a block reads what its forward made, in
//     opposite order.
//
// The first instance may read anything of the same size from before the run.
// Runs are maximal: they cannot be extended by an instance, and their period is
// minimal. If runs overlap, the one that covers the most ops is used. Within
// the ops that a run can spare, a block begins at the op with the fewest bytes
// made before it and read after it, which is where people put the boundary. No
// storage is written in one instance and mutated in the next, if avoiding that
// costs at most one instance.
//
// Method: windows of 1, 4, 16, ... ops are hashed; where the distance to the
// previous equal window is constant, ops repeat with that period (the idea of
// prefix doubling: Karp, Miller and Rosenberg, 1972). Long windows see across
// blocks that repeat something inside. Then every pair of ops is compared field
// by field, so the result does not depend on hashes. O(n log n + arities) time
// for n ops, O(n) memory.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

struct BlockRun {
  OpId begin = 0;      // first op of the first instance
  int32_t period = 0;  // ops of an instance
  int32_t count = 0;   // instances, at least 2
  // The run whose values this one reads instance by instance in opposite order;
  // -1: none.
  int32_t mirrors = -1;

  OpId end() const { return begin + period * count; }
};

struct Blocks {
  std::vector<BlockRun> runs;   // in base order, disjoint
  std::vector<int32_t> run_of;  // by op; -1: no run

  bool Has(OpId o) const { return run_of[o] >= 0; }
  // For an op in a run: its instance, and its position in it.
  int32_t InstanceOf(OpId o) const {
    const BlockRun& run = runs[run_of[o]];
    return (o - run.begin) / run.period;
  }
  int32_t PlaceOf(OpId o) const {
    const BlockRun& run = runs[run_of[o]];
    return (o - run.begin) % run.period;
  }
};

// Finds all runs of repeated blocks.
Blocks FindBlocks(const Problem& problem);

}  // namespace reprise::planner
