// SPDX-License-Identifier: Apache-2.0
#include "server/service/planning/stored_plan.h"

#include <algorithm>
#include <utility>

#include "formats/convert/capabilities.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/plan_proto.h"
#include "server/store/plan_rows.h"

namespace reprise::server {

StatusOr<StoredPlan> WalkPlan(const v1::StepGraph& graph, v1::Plan proto,
                              const v1::Capabilities& asked) {
  StoredPlan plan;
  ASSIGN_OR_RETURN(plan.graph, formats::ToPlanner(graph));
  plan.asked_capabilities = formats::WalkedAs(asked);
  ASSIGN_OR_RETURN(plan.capabilities,
                   formats::ToPlanner(plan.asked_capabilities));
  ASSIGN_OR_RETURN(plan.schedule, formats::ToSchedule(proto, plan.graph));
  if (proto.feasible()) {
    ASSIGN_OR_RETURN(
        plan.evaluation,
        planner::Evaluate(plan.graph, plan.schedule, plan.capabilities));
    plan.reserve_bytes = proto.peak_bytes() - plan.evaluation.peak_bytes;
  }
  plan.proto = std::move(proto);
  plan.timing = graph.timing();
  return plan;
}

StatusOr<StoredPlan> LoadStoredPlan(Store& store, const std::string& plan_id) {
  PlanRow row;
  v1::StepGraph graph;
  RETURN_IF_ERROR(store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(row, LoadPlan(db, plan_id));
    ASSIGN_OR_RETURN(graph, LoadGraph(db, row.plan.graph_id()));
    return OkStatus();
  }));
  ASSIGN_OR_RETURN(StoredPlan plan, WalkPlan(graph, std::move(row.plan),
                                             row.request.capabilities()));
  if (plan.proto.feasible()) return plan;
  // As at planning time: the difference of the measured and the modelled peak.
  ASSIGN_OR_RETURN(
      const planner::Evaluation base,
      planner::Evaluate(
          plan.graph,
          planner::BaseSchedule(plan.graph, plan.capabilities.free_policy),
          plan.capabilities));
  plan.reserve_bytes =
      row.request.reserve_bytes() +
      (graph.measured_peak_bytes() > 0
           ? std::max<int64_t>(0, graph.measured_peak_bytes() - base.peak_bytes)
           : 0);
  return plan;
}

}  // namespace reprise::server
