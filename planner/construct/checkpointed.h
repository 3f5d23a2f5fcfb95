// SPDX-License-Identifier: Apache-2.0
//
// Checkpointed regions, as the frameworks' own switches run them
// (torch.utils.checkpoint, jax.checkpoint): what a tool without a planner does.
//
//   forward    of a region, only what leaves it and what is saved stays
//   backward   before the first op that needs something else of it, the region
//              runs again as a whole, in its order, up to the last thing needed
//              or to its end; what is saved stays until then, needed or not
//
// A plan may do better: it runs again what it needs, when it needs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/model/step_graph.h"

namespace reprise::planner {

// Returns the repeated module that a module lies in, "encoder.layers.3" for
// "encoder.layers.3.attn"; empty if no part of its name is or ends in a number.
std::string_view BlockOf(std::string_view module);

// Which ops are checkpointed.
struct Checkpointed {
  // By op: its region, numbered in the order of the forward; -1: none. Only ops
  // of the forward have one.
  std::vector<int32_t> region;
  // By op: what it makes is saved, and it does not run again.
  std::vector<uint8_t> saved;
  // A region that runs again ends with the last thing needed.
  bool stops_early = true;
};

// Returns a region for each repeated module that the forward goes through, and
// nothing saved. A module that is gone through twice is two regions.
Checkpointed CheckpointBlocks(const StepGraph& graph);

// A step with checkpointed regions, as the evaluator takes it.
struct CheckpointedStep {
  // The step, where the first op that needs a region also reads all that is
  // saved in it.
  StepGraph graph;
  std::vector<OpId> execs;
};

// Returns the step with checkpointed regions. What runs once only is saved. The
// evaluator says whether the order is valid: a region that changes what another
// one made cannot be run again. O(ops + arities + execs).
CheckpointedStep RunCheckpointed(const StepGraph& graph,
                                 const Checkpointed& checkpointed);

}  // namespace reprise::planner
