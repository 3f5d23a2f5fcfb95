// SPDX-License-Identifier: Apache-2.0
#include "planner/explain/explain.h"

#include "formats/convert/digest.h"
#include "formats/convert/explain_proto.h"
#include "server/service/handlers.h"
#include "server/service/stored_plan.h"

namespace reprise::server {

StatusOr<v1::Explanation> Explain(Services& services,
                                  const v1::ExplainRequest& request) {
  RETURN_IF_ERROR(formats::ParseHexId(request.plan_id()).status());
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
  return explanation;
}

}  // namespace reprise::server
