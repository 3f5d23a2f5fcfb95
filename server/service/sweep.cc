// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "base/str_cat.h"
#include "formats/convert/refusal.h"
#include "formats/convert/search_options.h"
#include "server/service/handlers.h"

namespace reprise::server {

namespace {

constexpr uint32_t kDefaultPoints = 21;
constexpr uint32_t kMaxPoints = 501;
// Limit for the whole curve; points not reached by then use cheaper plans.
constexpr uint32_t kDefaultSweepLimitMs = 20'000;

v1::TradeoffPoint PointOf(const formats::Task& task,
                          const planner::CurvePoint& from) {
  v1::TradeoffPoint to;
  to.set_budget_bytes(from.budget_bytes + task.reserve_bytes);
  to.set_feasible(from.feasible);
  to.set_overhead(from.overhead);
  to.set_bound(from.bound);
  if (from.feasible) {
    to.set_peak_bytes(from.peak_bytes + task.reserve_bytes);
    to.set_time_ns(from.time_ns);
    return to;
  }
  *to.mutable_infeasible() =
      formats::ToProto(from.infeasible, task.graph, task.reserve_bytes);
  return to;
}

Status RunSweep(Services& services, const v1::SweepRequest& request,
                Call& call) {
  if (request.points() > kMaxPoints) {
    return InvalidArgument(
        StrCat("points: at most ", kMaxPoints, ", got ", request.points()));
  }
  v1::PlanRequest question;
  question.set_graph_id(request.graph_id());
  *question.mutable_capabilities() = request.capabilities();
  // The budget is arbitrary: a sweep covers all budgets.
  question.set_budget("1.0x");
  ASSIGN_OR_RETURN(formats::Task task, services.planning.LoadTask(question));
  if (request.time_limit_ms() > kMaxTimeLimitMs) {
    return InvalidArgument(StrCat("time_limit_ms: at most ", kMaxTimeLimitMs,
                                  ", got ", request.time_limit_ms()));
  }
  RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  RETURN_IF_ERROR(formats::ApplySearchOptions(request, task.request));
  const RunningCalls::Entry entry(services.planning.calls(),
                                  request.request_id());
  const auto limit = std::chrono::milliseconds(request.time_limit_ms() == 0
                                                   ? kDefaultSweepLimitMs
                                                   : request.time_limit_ms());
  const auto start = std::chrono::steady_clock::now();
  task.request.should_stop = [&] {
    return services.planning.stopping() || call.cancelled() ||
           entry.asked_to_finish() ||
           std::chrono::steady_clock::now() - start >= limit;
  };
  const int points = static_cast<int>(request.points() == 0 ? kDefaultPoints
                                                            : request.points());
  const auto send = [&](const planner::CurvePoint& point) {
    call.Send(PointOf(task, point));
  };
  RETURN_IF_ERROR(
      planner::Sweep(task.graph, task.request, points, send).status());
  if (services.planning.stopping()) {
    return Unavailable("the server is shutting down");
  }
  if (call.cancelled()) return Cancelled("the client left during the sweep");
  return OkStatus();
}

}  // namespace

void StartSweep(Services& services,
                std::shared_ptr<const v1::SweepRequest> request,
                std::shared_ptr<Call> call) {
  ++services.metrics.plans_waiting;
  auto work = [&services, request, call] {
    --services.metrics.plans_waiting;
    call->Finish(call->cancelled()
                     ? Cancelled("the client left before the sweep began")
                     : RunSweep(services, *request, *call));
  };
  if (services.planners.Post(std::move(work), Lane::kPatient)) return;
  --services.metrics.plans_waiting;
  call->Finish(ResourceExhausted(
      "too many plans are waiting; try again when some are done"));
}

}  // namespace reprise::server
