// SPDX-License-Identifier: Apache-2.0
//
// A stored plan together with its graph, as the evaluator wants them.
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
  // Empty for an impossible budget.
  planner::Schedule schedule;
  planner::Evaluation evaluation;  // of `schedule`
  // What the plan holds back for memory that is not in the graph.
  int64_t reserve_bytes = 0;
};

// NOT_FOUND; DATA_LOSS when what is stored does not hold together.
StatusOr<StoredPlan> LoadStoredPlan(Store& store, const std::string& plan_id);

}  // namespace reprise::server
