// SPDX-License-Identifier: Apache-2.0
//
// The oracle of executors with regions: every family of nested regions of a
// small forward and every level of every storage, by brute force. It has its
// own reading of planner/regions/regions.h; the evaluator says what the execs
// cost. Practical to 5 forward ops.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/model/evaluate.h"

namespace reprise::planner {

// What the executor runs, by this reading; nothing where it cannot.
std::optional<std::vector<OpId>> ExecsOf(const StepGraph& graph,
                                         const Capabilities& capabilities,
                                         const RegionPlan& plan);

// All families of regions that nest no deeper than the capabilities allow.
std::vector<std::vector<Region>> AllRegions(int forward_ops,
                                            const Capabilities& capabilities);

// Ops before the first one of the backward.
int ForwardOps(const StepGraph& graph);

struct RegionAnswer {
  int64_t time_ns = 0;
  RegionPlan plan;
};

// Nothing: no plan stays within the budget.
std::optional<RegionAnswer> BestRegions(const StepGraph& graph,
                                        const Capabilities& capabilities,
                                        int64_t budget_bytes);

}  // namespace reprise::planner
