// SPDX-License-Identifier: Apache-2.0
#include "planner/explain/explain.h"

#include <utility>

#include "formats/convert/digest.h"
#include "formats/convert/explain_proto.h"
#include "server/service/calls/handlers.h"
#include "server/service/planning/stored_plan.h"
#include "server/store/plan_rows.h"

namespace reprise::server {

StatusOr<v1::Explanation> Explain(Services& services,
                                  const v1::ExplainRequest& request) {
  RETURN_IF_ERROR(formats::ParseHexId(request.plan_id()).status());
  std::string stored_plan;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const PlanRow row, LoadPlan(db, request.plan_id()));
    stored_plan =
        row.plan.SerializeAsString() + row.request.SerializeAsString();
    return OkStatus();
  }));
  const auto kept = services.explanations.Find(request.plan_id());
  if (kept && kept->plan == stored_plan) return kept->explanation;
  ASSIGN_OR_RETURN(const StoredPlan stored,
                   LoadStoredPlan(services.store, request.plan_id()));
  const planner::Plan plan = formats::ToPlanner(
      stored.proto, stored.schedule, stored.evaluation, stored.reserve_bytes);
  v1::Explanation explanation = formats::ToProto(
      stored.graph,
      planner::Explain(stored.graph, plan,
                       stored.proto.budget_bytes() - stored.reserve_bytes,
                       stored.capabilities),
      stored.reserve_bytes);
  *explanation.mutable_plan() = stored.proto;
  *explanation.mutable_capabilities() = stored.asked_capabilities;
  explanation.set_timing(stored.timing);
  ++services.metrics.explanations_made;
  const size_t bytes = explanation.ByteSizeLong() + stored_plan.size();
  services.explanations.Keep(
      request.plan_id(),
      {.plan = std::move(stored_plan), .explanation = explanation}, bytes);
  return explanation;
}

}  // namespace reprise::server
