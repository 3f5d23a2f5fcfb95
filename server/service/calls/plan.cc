// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "formats/convert/digest.h"
#include "formats/convert/explain_proto.h"
#include "formats/convert/verify_proto.h"
#include "planner/bounds/certify.h"
#include "planner/explain/explain.h"
#include "server/service/calls/handlers.h"
#include "server/service/planning/stored_plan.h"
#include "server/store/plan_rows.h"

namespace reprise::server {
PlanningHooks HooksOf(Call& call) {
  return {.cancelled = [&call] { return call.cancelled(); },
          .on_progress =
              [&call](const v1::PlanProgress& progress) {
                // A slow client gets fewer progress messages.
                if (call.unsent() > 8) return;
                v1::PlanEvent event;
                *event.mutable_progress() = progress;
                call.Send(event);
              }};
}

void SendPlan(v1::Plan plan, Call& call) {
  v1::PlanEvent event;
  *event.mutable_plan() = std::move(plan);
  call.Send(event);
}

Status MakePlan(Services& services, const v1::PlanRequest& request,
                Call& call) {
  const PlanningHooks hooks = HooksOf(call);
  ASSIGN_OR_RETURN(
      v1::Plan plan,
      request.replaces().empty()
          ? services.planning.Make(request, hooks)
          : services.planning.Replace(request.run_id(), request.replaces(),
                                      request.more_bytes(), hooks));
  SendPlan(std::move(plan), call);
  return OkStatus();
}

Lane LaneOf(const v1::PlanRequest& request) {
  if (request.time_limit_ms() > kMaxPromptMs) return Lane::kPatient;
  return request.run_id().empty() ? Lane::kPrompt : Lane::kJob;
}

StatusOr<v1::FinishPlanResponse> FinishPlan(
    Services& services, const v1::FinishPlanRequest& request) {
  RETURN_IF_ERROR(services.planning.calls().Finish(request.request_id()));
  return v1::FinishPlanResponse();
}

StatusOr<v1::Plan> GetPlan(Services& services,
                           const v1::GetPlanRequest& request) {
  RETURN_IF_ERROR(formats::ParseHexId(request.plan_id()).status());
  ASSIGN_OR_RETURN(PlanRow row,
                   services.store.Get(LoadPlan, request.plan_id()));
  return std::move(row.plan);
}

StatusOr<v1::Verification> Verify(Services& services,
                                  const v1::VerifyRequest& request) {
  RETURN_IF_ERROR(formats::ParseHexId(request.plan_id()).status());
  ASSIGN_OR_RETURN(const StoredPlan stored,
                   LoadStoredPlan(services.store, request.plan_id()));
  return formats::VerifyPlan(
      stored.graph, stored.proto,
      planner::ExecutorOf(planner::WithExecution(stored.capabilities)));
}

StatusOr<v1::Explanation> Explain(Services& services,
                                  const v1::ExplainRequest& request) {
  RETURN_IF_ERROR(formats::ParseHexId(request.plan_id()).status());
  ASSIGN_OR_RETURN(const PlanRow row,
                   services.store.Get(LoadPlan, request.plan_id()));
  std::string stored_plan =
      row.plan.SerializeAsString() + row.request.SerializeAsString();
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
  services.metrics.explanations_made.Increment();
  const size_t bytes = explanation.ByteSizeLong() + stored_plan.size();
  services.explanations.Keep(
      request.plan_id(),
      {.plan = std::move(stored_plan), .explanation = explanation}, bytes);
  return explanation;
}

}  // namespace reprise::server
