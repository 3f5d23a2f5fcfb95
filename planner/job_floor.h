// SPDX-License-Identifier: Apache-2.0
//
// The least memory that a step needs regardless of the executor: a bound that
// depends only on the step.
//
// A refusal is a proof under the rules of one executor: what it never runs
// again, keeps, or runs again in the backward only. For the floor, every op of
// the forward that reads something may run again anywhere, and so may those of a
// backward within the forward, whose gradients it reads; nothing is kept for
// another reason; other ops may run again if this executor allows it. A
// budget below the floor is out of reach for hand-written checkpointing, too;
// above it, a refusal is due to the executor.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/plan.h"

namespace reprise::planner {

struct JobFloor {
  // No executor that runs these ops in this order needs less.
  int64_t bytes = 0;
  OpId op = kNoOp;  // the op that needs it
};

// Returns the floor of a valid graph. Stops once it exceeds `budget_bytes`, or
// after `max_ticks` ticks; it is then a smaller, still valid bound.
JobFloor FloorOf(const StepGraph& graph, const Capabilities& executor,
                 int64_t budget_bytes, int64_t max_ticks);

// Returns the ops of the forward that never run again and made values that `at` or a
// later op needs, ordered by the bytes of those values, most first. Ops that
// read nothing are omitted: no executor could run them again either.
std::vector<OpId> NeverAgain(const StepGraph& graph, OpId at);

}  // namespace reprise::planner
