// SPDX-License-Identifier: Apache-2.0
//
// Brute force for executors of kind `once`: every set of saved storages of a
// small forward. It implements planner/once/once.h independently; the evaluator
// computes what the execs cost.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/model/evaluate.h"

namespace reprise::planner {

// Returns what the executor runs under a saved set, or nothing if it cannot run
// the set.
std::optional<std::vector<OpId>> ExecsOf(const StepGraph& graph,
                                         const Capabilities& capabilities,
                                         const std::vector<uint8_t>& saved);

// Returns the number of ops before the first backward op.
int ForwardOps(const StepGraph& graph);

// Returns the time of the fastest plan within the budget, or nothing if there
// is none.
std::optional<int64_t> BestSavedNs(const StepGraph& graph,
                                   const Capabilities& capabilities,
                                   int64_t budget_bytes);

}  // namespace reprise::planner
