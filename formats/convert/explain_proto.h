// SPDX-License-Identifier: Apache-2.0
//
// The planner's explanation with the names people know.
#pragma once

#include "planner/explain/explain.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::formats {

// Storages largest first. `reserve_bytes` is what is held back inside the
// budget: sums that contain static memory are shown with it.
v1::Explanation ToProto(const planner::StepGraph& graph,
                        const planner::Explanation& from,
                        int64_t reserve_bytes);

// Fields that the explanation looks at, from a Plan that was stored or read
// from a file. `schedule` must have passed the evaluator.
planner::Plan ToPlanner(const v1::Plan& from, planner::Schedule schedule,
                        const planner::Evaluation& evaluation,
                        int64_t reserve_bytes);

// "one more GiB saves 1.2 ms"; empty where the budget costs nothing.
std::string PriceText(double price_ns_per_byte);

}  // namespace reprise::formats
