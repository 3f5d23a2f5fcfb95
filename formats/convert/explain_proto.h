// SPDX-License-Identifier: Apache-2.0
//
// Converts the planner's explanation to a proto, with the names that people
// know.
#pragma once

#include "planner/explain/explain.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::formats {

// Converts an explanation; storages are ordered by size, largest first.
// `reserve_bytes` is the reserve within the budget: sums that contain static
// memory include it.
v1::Explanation ToProto(const planner::StepGraph& graph,
                        const planner::Explanation& from,
                        int64_t reserve_bytes);

// Returns the fields of a plan that an explanation needs, from a Plan that was
// stored or read from a file. `schedule` must have passed the evaluator.
planner::Plan ToPlanner(const v1::Plan& from, planner::Schedule schedule,
                        const planner::Evaluation& evaluation,
                        int64_t reserve_bytes);

// Returns "one more MiB saves 1.2 ms"; empty if the budget costs no time. The
// unit is the largest of GiB, MiB and KiB that is at most a tenth of the plan's
// peak without its static bytes: the price is a slope, which holds near the
// budget only. Never more than all that the plan recomputes. The page says the
// same: web/src/data/changes.ts.
std::string PriceText(const v1::Explanation& explanation);

}  // namespace reprise::formats
