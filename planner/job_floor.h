// SPDX-License-Identifier: Apache-2.0
//
// What a step needs whoever runs it: the bound that is left when nothing stands
// in the way but the step itself.
//
// A refusal is a proof under the rules of one executor: what it never runs
// again, keeps, or runs again in the backward only. Here every op of the
// forward that reads something may run again, anywhere, and nothing of it is
// kept for anybody; other ops may where this executor runs them again. A budget
// below this floor is out of reach for checkpoints by hand, too; above it the
// refusal is the executor's own.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/model/plan.h"

namespace reprise::planner {

struct JobFloor {
  // Nothing that runs these ops in this order needs less.
  int64_t bytes = 0;
  OpId op = kNoOp;  // that needs it
};

// The graph must be valid. Stops as soon as the floor is above `budget_bytes`,
// or after so many ticks.
JobFloor FloorOf(const StepGraph& graph, const Capabilities& executor,
                 int64_t budget_bytes, int64_t max_ticks);

// Forward ops that never run again and made what `at` or a later op needs, by
// the bytes of that, the most first. What nobody else could make again either,
// because it reads nothing, is not among them.
std::vector<OpId> NeverAgain(const StepGraph& graph, OpId at);

}  // namespace reprise::planner
