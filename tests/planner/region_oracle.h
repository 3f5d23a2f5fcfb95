// SPDX-License-Identifier: Apache-2.0
//
// Brute force for executors with regions: every family of nested regions of a
// small forward with every level of every storage. It implements
// planner/regions/regions.h independently; the evaluator computes what the
// execs cost. Practical to 5 forward ops.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/model/evaluate.h"

namespace reprise::planner {

// Returns what the executor runs under a plan, or nothing if it cannot run the
// plan.
std::optional<std::vector<OpId>> ExecsOf(const StepGraph& graph,
                                         const Capabilities& capabilities,
                                         const RegionPlan& plan);

// Returns all families of regions that nest no deeper than the capabilities
// allow.
std::vector<std::vector<Region>> AllRegions(int forward_ops,
                                            const Capabilities& capabilities);

// Returns the number of ops before the first backward op.
int ForwardOps(const StepGraph& graph);

struct RegionAnswer {
  int64_t time_ns = 0;
  RegionPlan plan;
};

// Returns nothing if no plan stays within the budget.
std::optional<RegionAnswer> BestRegions(const StepGraph& graph,
                                        const Capabilities& capabilities,
                                        int64_t budget_bytes);

}  // namespace reprise::planner
