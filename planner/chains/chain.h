// SPDX-License-Identifier: Apache-2.0
//
// A step graph as a chain of stages.
//
// The forward is [0, boundary): up to the first backward op. After op p, some
// values made so far are still read by later forward ops: they *cross* p. If
// only one does, p is an articulation point: the forward after p depends on
// what came before through that value alone (values that may not be recomputed
// are always present and do not count). The stretches between articulation
// points are the stages. Graphs with too few of them (dense blocks, long skips)
// are cut where the crossing bytes have a local minimum instead.
//
// Checkpointing by segments uses such cuts: Griewank and Walther, Revolve,
// 2000; Chen et al., Training deep nets with sublinear memory cost, 2016;
// articulation points as in the gradient-checkpointing package (Salimans and
// Bulatov, 2018). O(ops + arities).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

struct Chain {
  OpId boundary = 0;
  // The last op of each stage, ascending; the last is boundary - 1. Empty if
  // the graph has no backward.
  std::vector<OpId> ends = {};
  // By stage: the bytes that cross its end.
  std::vector<int64_t> crossing_bytes = {};
  // All ends but the last are articulation points.
  bool articulated = false;

  int stage_count() const { return static_cast<int>(ends.size()); }
};

// Returns the last forward op that reads a value, or its maker.
OpId LastForwardUse(const Problem& problem, ValueId v);

// Finds the chain of a problem's graph.
Chain FindChain(const Problem& problem);

// Returns the bytes that the ops of each stage make, plus `per_op` for each.
std::vector<int64_t> BytesMade(const Problem& problem, const Chain& chain,
                               int64_t per_op);

// Returns the chain with at most `most_stages` stages: joins neighbours, the
// smallest first (by bytes made).
Chain JoinStages(const Problem& problem, const Chain& chain, int most_stages);

// Returns the stage of every op. A backward op belongs to the stage whose
// values it reads (if it reads the input of a stage, to that stage), but never
// to a later stage than an op before it.
std::vector<int32_t> StagesOfOps(const Problem& problem, const Chain& chain);

}  // namespace reprise::planner
