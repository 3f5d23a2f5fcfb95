// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/handlers.h"

namespace reprise::server {

namespace {

void RunPlan(Services& services, const v1::PlanRequest& request, Call& call) {
  const PlanningHooks hooks{
      .cancelled = [&call] { return call.cancelled(); },
      .on_progress =
          [&call](const v1::PlanProgress& progress) {
            // A slow client gets fewer progress messages.
            if (call.unsent() > 8) return;
            v1::PlanEvent event;
            *event.mutable_progress() = progress;
            call.Send(event);
          },
  };
  StatusOr<v1::Plan> plan =
      request.replaces().empty()
          ? services.planning.Make(request, hooks)
          : services.planning.Replace(request.run_id(), request.replaces(),
                                      request.more_bytes(), hooks);
  if (plan.ok()) {
    v1::PlanEvent event;
    *event.mutable_plan() = std::move(*plan);
    call.Send(event);
  }
  call.Finish(plan.status());
}

Lane LaneOf(const v1::PlanRequest& request) {
  if (request.time_limit_ms() > kMaxPromptMs) return Lane::kPatient;
  return request.run_id().empty() ? Lane::kPrompt : Lane::kJob;
}

}  // namespace

void StartPlan(Services& services,
               std::shared_ptr<const v1::PlanRequest> request,
               std::shared_ptr<Call> call) {
  ++services.metrics.plans_waiting;
  auto work = [&services, request, call] {
    --services.metrics.plans_waiting;
    if (call->cancelled()) {
      call->Finish(Cancelled("the client left before planning began"));
      return;
    }
    RunPlan(services, *request, *call);
  };
  if (services.planners.Post(std::move(work), LaneOf(*request))) return;
  --services.metrics.plans_waiting;
  call->Finish(ResourceExhausted(
      "too many plans are waiting; try again when some are done"));
}

}  // namespace reprise::server
