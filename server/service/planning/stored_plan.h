// SPDX-License-Identifier: Apache-2.0
//
// A stored plan with its graph, in the form that the evaluator needs.
#pragma once

#include <string>

#include "base/status.h"
#include "planner/planner.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/planner.pb.h"
#include "server/store/store.h"

namespace reprise::server {

struct StoredPlan {
  v1::Plan proto;
  planner::StepGraph graph;
  planner::Capabilities capabilities;
  v1::Capabilities asked_capabilities;
  // Empty if the budget is impossible.
  planner::Schedule schedule;
  planner::Evaluation evaluation;  // of `schedule`
  std::string timing;              // of the graph
  // Bytes that the plan reserves for memory that is not in the graph.
  int64_t reserve_bytes = 0;
};

// Follows a plan of this graph that was asked for with these capabilities; of one
// that is not feasible, the reserve is not known. INVALID_ARGUMENT: they do not
// match.
StatusOr<StoredPlan> WalkPlan(const v1::StepGraph& graph, v1::Plan proto,
                              const v1::Capabilities& asked);

// NOT_FOUND; DATA_LOSS if the stored plan and graph do not match.
StatusOr<StoredPlan> LoadStoredPlan(Store& store, const std::string& plan_id);

}  // namespace reprise::server
