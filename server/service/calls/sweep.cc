// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/plan_proto.h"
#include "formats/convert/refusal.h"
#include "server/service/calls/handlers.h"
#include "server/store/plan_rows.h"

namespace reprise::server {

namespace {

constexpr uint32_t kDefaultPoints = 21;
constexpr uint32_t kMaxPoints = 501;
// Limit for the whole curve; points not reached by then use cheaper plans.
constexpr uint32_t kDefaultSweepLimitMs = 20'000;
// A curve whose search ran into its limit is kept so long: it may become better
// when the machine has less to do.
constexpr auto kCutKept = std::chrono::minutes(10);

// What a curve is about, whoever asks, and however long it may take.
std::string QuestionOf(const v1::SweepRequest& request) {
  v1::SweepRequest what = request;
  what.clear_request_id();
  what.clear_time_limit_ms();
  if (what.points() == 0) what.set_points(kDefaultPoints);
  return what.SerializeAsString();
}

// Sends a curve that is kept, if it is as good as a search of `limit` would be.
bool SendKept(Services& services, const std::string& question,
              std::chrono::milliseconds limit, Call& call) {
  const auto kept = services.curves.Find(question);
  if (!kept) return false;
  if (kept->cut_after.count() > 0 &&
      (limit > kept->cut_after ||
       std::chrono::steady_clock::now() > kept->cut_until)) {
    return false;
  }
  for (const v1::TradeoffPoint& point : kept->points) call.Send(point);
  return true;
}

v1::TradeoffPoint PointOf(const formats::Task& task,
                          const planner::CurvePoint& from) {
  v1::TradeoffPoint to;
  to.set_inferred(task.inferred);
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

}  // namespace

Status SendCurve(Services& services, const v1::SweepRequest& request,
                 Call& call) {
  if (request.points() > kMaxPoints) {
    return InvalidArgument(
        StrCat("points: at most ", kMaxPoints, ", got ", request.points()));
  }
  if (request.time_limit_ms() > kMaxTimeLimitMs) {
    return InvalidArgument(StrCat("time_limit_ms: at most ", kMaxTimeLimitMs,
                                  ", got ", request.time_limit_ms()));
  }
  RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  const auto limit = std::chrono::milliseconds(request.time_limit_ms() == 0
                                                   ? kDefaultSweepLimitMs
                                                   : request.time_limit_ms());
  RETURN_IF_ERROR(services.store.Read(
      [&](Database& db) { return FindGraph(db, request.graph_id()); }));
  const std::string question = QuestionOf(request);
  if (SendKept(services, question, limit, call)) return OkStatus();
  v1::PlanRequest wish;
  wish.set_graph_id(request.graph_id());
  *wish.mutable_capabilities() = request.capabilities();
  // The budget is arbitrary: a sweep covers all budgets.
  wish.set_budget("1.0x");
  ASSIGN_OR_RETURN(formats::Task task, services.planning.LoadTask(wish));
  RETURN_IF_ERROR(formats::ApplySearchOptions(request, task.request));
  const RunningCalls::Entry entry(services.planning.calls(),
                                  request.request_id());
  const auto start = std::chrono::steady_clock::now();
  task.request.should_stop = [&] {
    return services.planning.stopping() || call.cancelled() ||
           entry.asked_to_finish() ||
           std::chrono::steady_clock::now() - start >= limit;
  };
  const int points = static_cast<int>(request.points() == 0 ? kDefaultPoints
                                                            : request.points());
  KeptCurve curve;
  size_t bytes = 0;
  const auto send = [&](const planner::CurvePoint& found) {
    v1::TradeoffPoint point = PointOf(task, found);
    bytes += point.ByteSizeLong();
    // A point that a later search improved comes again.
    const auto known = std::find_if(
        curve.points.begin(), curve.points.end(), [&](const auto& one) {
          return one.budget_bytes() == point.budget_bytes();
        });
    if (known != curve.points.end()) {
      *known = point;
    } else {
      curve.points.push_back(point);
    }
    call.Send(std::move(point));
  };
  services.metrics.curves_made.Increment();
  RETURN_IF_ERROR(
      planner::Sweep(task.graph, task.request, points, send).status());
  if (services.planning.stopping()) {
    return Unavailable("the server is shutting down");
  }
  if (call.cancelled()) return Cancelled("the client left during the sweep");
  if (entry.asked_to_finish()) return OkStatus();
  const auto now = std::chrono::steady_clock::now();
  if (now - start >= limit) {
    curve.cut_after = limit;
    curve.cut_until = now + kCutKept;
  }
  services.curves.Keep(question, std::move(curve), bytes);
  return OkStatus();
}

}  // namespace reprise::server
