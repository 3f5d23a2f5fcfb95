// SPDX-License-Identifier: Apache-2.0
//
// A step graph seen as a chain of stages.
//
// The forward pass is [0, boundary): up to the first backward op. After op p,
// some values made so far are still read by later forward ops: they *cross* p.
// Where only one does, p is an articulation point: the forward after p depends
// on what came before through that value alone (values nobody may make again
// are always there and do not count). The stretches between articulation points
// are the stages. Graphs without enough of them (dense blocks, long skips) are
// cut where the crossing bytes have a local minimum instead.
//
// These are the places that checkpointing by segments is about: Griewank and
// Walther, Revolve, 2000; Chen et al., Training deep nets with sublinear memory
// cost, 2016; the articulation points are those of the gradient-checkpointing
// package (Salimans and Bulatov, 2018). O(ops + arities).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

struct Chain {
  OpId boundary = 0;
  // The last op of each stage, ascending; the last is boundary - 1. Empty where
  // the graph has no backward.
  std::vector<OpId> ends = {};
  // By stage: bytes that cross its end.
  std::vector<int64_t> crossing_bytes = {};
  // Every end but the last is an articulation point.
  bool articulated = false;

  int stage_count() const { return static_cast<int>(ends.size()); }
};

Chain FindChain(const Problem& problem);

// The same with at most `most_stages`: neighbours are joined, the smallest
// first (by bytes made).
Chain JoinStages(const Problem& problem, const Chain& chain, int most_stages);

// By op: its stage. A backward op belongs to the stage whose values it reads
// (of the input of a stage: to that stage), never to a later one than an op
// before it.
std::vector<int32_t> StagesOfOps(const Problem& problem, const Chain& chain);

}  // namespace reprise::planner
