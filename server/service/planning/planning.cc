// SPDX-License-Identifier: Apache-2.0
#include "server/service/planning/planning.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/str_cat.h"
#include "formats/convert/digest.h"
#include "formats/convert/plan_proto.h"
#include "formats/convert/sentence.h"
#include "formats/solve/solve_plan.h"
#include "server/core/log.h"
#include "server/store/chunk_rows.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

using Clock = std::chrono::steady_clock;

// Interval of progress messages to a client while the search runs.
constexpr auto kHeartbeat = std::chrono::milliseconds(250);

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

v1::PlanProgress ProgressMessage(const planner::Progress& progress,
                                 double elapsed_ms) {
  v1::PlanProgress message;
  message.set_elapsed_ms(elapsed_ms);
  message.set_overhead(progress.overhead);
  message.set_bound(progress.bound);
  message.set_gap(progress.overhead < 0 ? -1
                                        : progress.overhead - progress.bound);
  return message;
}

// Limits the threads that a request asks for to the number of cores.
int ThreadsFor(uint32_t wanted) {
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(std::clamp(wanted, 1u, cores));
}

std::string_view Outcome(const StatusOr<v1::Plan>& plan) {
  if (!plan.ok()) return "error";
  if (plan->proven_optimal()) return "optimal";
  if (plan->interrupted() || formats::Undecided(*plan)) return "timeout";
  return plan->feasible() ? "feasible" : "infeasible";
}

}  // namespace

StatusOr<formats::Task> Planning::LoadTask(const v1::PlanRequest& request) {
  RETURN_IF_ERROR(formats::ParseHexId(request.graph_id()).status());
  if (request.reserve_bytes() < 0) {
    return InvalidArgument(StrCat("reserve_bytes: must not be negative, got ",
                                  request.reserve_bytes()));
  }
  ASSIGN_OR_RETURN(v1::StepGraph graph,
                   store_.Get(LoadGraph, request.graph_id()));
  return formats::MakeTask(graph, request.graph_id(), request.budget(),
                           request.capabilities(), request.reserve_bytes(),
                           request.device_bytes(), request.device_free_bytes());
}

StatusOr<v1::Plan> Planning::Solve(const v1::PlanRequest& request,
                                   const PlanningHooks& hooks, uint32_t replan,
                                   bool* finished) {
  const Clock::time_point start = Clock::now();
  if (request.time_limit_ms() > kMaxTimeLimitMs) {
    return InvalidArgument(StrCat("time_limit_ms: at most ", kMaxTimeLimitMs,
                                  ", got ", request.time_limit_ms()));
  }
  ASSIGN_OR_RETURN(formats::Task task, LoadTask(request));
  task.replan = replan;
  const auto limit = std::chrono::milliseconds(request.time_limit_ms() == 0
                                                   ? kDefaultTimeLimitMs
                                                   : request.time_limit_ms());
  RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  RETURN_IF_ERROR(formats::ApplySearchOptions(request, task.request));
  // A given time limit is used up; otherwise the planner's default effort
  // applies.
  task.request.until_stopped = request.time_limit_ms() != 0;
  const RunningCalls::Entry entry(calls_, request.request_id());
  Clock::time_point sent = start;
  planner::Progress last;
  const auto send = [&] {
    sent = Clock::now();
    hooks.on_progress(ProgressMessage(last, MillisecondsSince(start)));
  };
  const bool waits = task.waits && request.time_limit_ms() == 0;
  task.request.should_stop = [&] {
    if (hooks.on_progress && Clock::now() - sent >= kHeartbeat) send();
    const auto enough = waits && last.overhead >= 0
                            ? std::chrono::milliseconds(kFirstStepMs)
                            : limit;
    return stopping_ || entry.asked_to_finish() ||
           (hooks.cancelled && hooks.cancelled()) ||
           Clock::now() - start >= enough;
  };
  task.request.on_progress = [&](const planner::Progress& progress) {
    last = progress;
    if (hooks.on_progress) send();
  };
  ASSIGN_OR_RETURN(
      const planner::Plan plan,
      formats::SolvePlan(task.graph, task.request,
                         {.threads = ThreadsFor(request.threads())}));
  if (finished != nullptr) *finished |= entry.asked_to_finish();
  if (stopping_) return Unavailable("the server is shutting down");
  if (hooks.cancelled && hooks.cancelled()) {
    return Cancelled("the client left before the plan was made");
  }
  return formats::ToProto(task, plan, MillisecondsSince(start));
}

Status Planning::CheckTrusted(const v1::Plan& plan, const std::string& run_id) {
  return store_.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const std::optional<FailedCheck> failed,
                     FindFailedCheck(db, plan.plan_id()));
    if (!failed) return OkStatus();
    // Which run of somebody else it was is nobody's business.
    ASSIGN_OR_RETURN(const auto others,
                     db.First("SELECT 1 FROM runs a, runs b WHERE a.run_id = ?"
                              " AND b.run_id = ? AND a.owner <> ''"
                              " AND a.owner <> b.owner",
                              run_id, failed->run_id));
    return FailedPrecondition(StrCat(
        "plan ", plan.plan_id(), " is withdrawn: ",
        others ? std::string("a step of another user's run")
               : StrCat("step ", failed->step, " of run ", failed->run_id),
        " saw it change gradients"));
  });
}

Status Planning::Keep(const v1::PlanRequest& request, const v1::Plan& plan,
                      const std::string& name) {
  PlanRow row{.plan = plan, .request = request};
  return store_.Write([&](Database& db) -> Status {
    const int64_t now_ns = RealtimeNs();
    if (!request.run_id().empty()) {
      RETURN_IF_ERROR(EnsureRun(db, request.run_id(), now_ns));
      ASSIGN_OR_RETURN(const int64_t bytes, BytesToSave(db, row));
      RETURN_IF_ERROR(TakeRoom(db, quota_, request.run_id(), "plan", bytes));
    }
    RETURN_IF_ERROR(SavePlan(db, row, now_ns));
    if (!name.empty()) {
      RETURN_IF_ERROR(SaveAnswer(db, name, plan.plan_id()));
    }
    if (request.run_id().empty()) return OkStatus();
    return SetRunPlan(db, request.run_id(), plan.plan_id());
  });
}

StatusOr<v1::Plan> Planning::SolveLeast(v1::PlanRequest& request,
                                        const PlanningHooks& hooks,
                                        bool* finished) {
  // No step fits in one byte. The refusal has the proven bound; a search within
  // that ends with a plan or with the smallest one that it has found.
  request.set_budget("1");
  ASSIGN_OR_RETURN(v1::Plan plan, Solve(request, hooks, 0, finished));
  const int64_t bound = plan.infeasible().smallest_budget_bytes();
  if (plan.feasible() || bound <= 0) return plan;
  request.set_budget(std::to_string(bound));
  ASSIGN_OR_RETURN(plan, Solve(request, hooks, 0, finished));
  const int64_t known = plan.infeasible().smallest_known_bytes();
  if (plan.feasible() || known <= 0) return plan;
  request.set_budget(std::to_string(known));
  return Solve(request, hooks, 0, finished);
}

StatusOr<v1::Plan> Planning::Make(const v1::PlanRequest& request,
                                  const PlanningHooks& hooks, uint32_t replan) {
  return store_.shared() ? MakeOnce(request, hooks, replan)
                         : MakeHere(request, hooks, replan, "");
}

StatusOr<v1::Plan> Planning::MakeHere(const v1::PlanRequest& asked,
                                      const PlanningHooks& hooks,
                                      uint32_t replan,
                                      const std::string& name) {
  const Clock::time_point start = Clock::now();
  bool finished = false;
  v1::PlanRequest request = asked;
  StatusOr<v1::Plan> plan = request.budget() == kLeastBudget
                                ? SolveLeast(request, hooks, &finished)
                                : Solve(request, hooks, replan, &finished);
  metrics_.CountPlan(Outcome(plan), MillisecondsSince(start) / 1000);
  if (!plan.ok()) return plan;
  if (!request.run_id().empty()) {
    RETURN_IF_ERROR(CheckTrusted(*plan, request.run_id()));
  }
  // A search that somebody ended is no answer for others.
  RETURN_IF_ERROR(Keep(request, *plan, finished ? "" : name));
  // Once it is stored: where daemons share a store, each plan has one such line.
  LogInfo("planned",
          StrCat("plan ", plan->plan_id(), " for graph ", plan->graph_id(),
                 request.run_id().empty() ? "" : ", run ", request.run_id(),
                 ": ", plan->sentence()),
          {{"run_id", request.run_id()},
           {"graph_id", plan->graph_id()},
           {"plan_id", plan->plan_id()},
           {"budget_bytes", plan->budget_bytes()},
           {"peak_bytes", plan->peak_bytes()}});
  if (!request.run_id().empty()) hub_.Notify(request.run_id());
  return plan;
}

StatusOr<v1::Plan> Planning::Replace(const std::string& run_id,
                                     const std::string& plan_id,
                                     int64_t more_bytes,
                                     const PlanningHooks& hooks) {
  const Replacements::Result found = replacements_.Once(
      run_id, plan_id, more_bytes,
      [&] { return MakeReplacement(run_id, plan_id, more_bytes, hooks); });
  RETURN_IF_ERROR(found.status);
  if (!found.plan.feasible()) return found.plan;
  if (found.more_bytes < more_bytes) {
    return Replace(run_id, found.plan.plan_id(), more_bytes - found.more_bytes,
                   hooks);
  }
  ASSIGN_OR_RETURN(PlanRow row, store_.Get(LoadPlan, found.plan.plan_id()));
  return std::move(row.plan);
}

StatusOr<v1::Plan> Planning::MakeReplacement(const std::string& run_id,
                                             const std::string& plan_id,
                                             int64_t more_bytes,
                                             const PlanningHooks& hooks) {
  ASSIGN_OR_RETURN(PlanRow old, store_.Get(LoadPlan, plan_id));
  if (more_bytes <= 0) {
    return InvalidArgument(
        StrCat("more_bytes: must be positive, got ", more_bytes));
  }
  if (old.plan.replan() >= kMaxReplans) {
    return FailedPrecondition(StrCat("plan ", plan_id, " was made after ",
                                     kMaxReplans,
                                     " others that needed more memory than "
                                     "they said: no further one is made"));
  }
  v1::PlanRequest request = old.request;
  request.set_run_id(run_id);
  request.clear_request_id();
  request.set_reserve_bytes(request.reserve_bytes() + more_bytes);
  // "0.5x" and the like refer to the first plan's figures, so use its bytes.
  request.set_budget(std::to_string(old.plan.budget_bytes()));
  const uint32_t attempt = old.plan.replan() + 1;
  const auto solve = [&] {
    StatusOr<v1::Plan> plan = Solve(request, hooks, attempt);
    metrics_.CountPlan(Outcome(plan), 0);
    return plan;
  };
  ASSIGN_OR_RETURN(v1::Plan plan, solve());
  if (plan.feasible() && plan.plan_id() == plan_id) {
    return FailedPrecondition(StrCat("plan ", plan_id, " leaves ", more_bytes,
                                     " bytes of its budget already"));
  }
  if (!plan.feasible()) {
    const int64_t least = plan.infeasible().smallest_known_bytes();
    if (least <= 0 || least >= old.plan.peak_bytes() + more_bytes) return plan;
    // The budget is the program's: what cannot be held back within it is not.
    request.set_reserve_bytes(request.reserve_bytes() -
                              (least - old.plan.budget_bytes()));
    ASSIGN_OR_RETURN(v1::Plan nearest, solve());
    if (!nearest.feasible() || nearest.plan_id() == plan_id) return plan;
    plan = std::move(nearest);
  }
  if (plan.budget_bytes() == old.plan.budget_bytes()) {
    plan.set_budget(old.plan.budget());
  }
  RETURN_IF_ERROR(CheckTrusted(plan, run_id));
  RETURN_IF_ERROR(Keep(request, plan, ""));
  metrics_.replans.Increment();
  LogInfo("replaced",
          StrCat("run ", run_id, ": plan ", plan_id, " needs ", more_bytes,
                 " bytes more than it says; re-plan ", attempt, ": ",
                 plan.sentence()),
          {{"run_id", run_id},
           {"plan_id", plan.plan_id()},
           {"replaces", plan_id},
           {"more_bytes", more_bytes}});
  hub_.Notify(run_id);
  return plan;
}

StatusOr<std::vector<v1::Plan>> Planning::Rebudget(
    const std::string& run_id, const std::vector<std::string>& plan_ids,
    const std::string& budget, const PlanningHooks& hooks) {
  std::vector<v1::PlanRequest> requests;
  std::vector<v1::Plan> plans;
  for (const std::string& plan_id : plan_ids) {
    ASSIGN_OR_RETURN(PlanRow old, store_.Get(LoadPlan, plan_id));
    v1::PlanRequest request = old.request;
    request.set_run_id(run_id);
    request.set_budget(budget);
    request.clear_request_id();
    request.clear_replaces();
    request.clear_more_bytes();
    StatusOr<v1::Plan> plan = Solve(request, hooks, /*replan=*/0);
    metrics_.CountPlan(Outcome(plan), 0);
    RETURN_IF_ERROR(plan.status());
    if (!plan->feasible()) return std::vector<v1::Plan>{*std::move(plan)};
    RETURN_IF_ERROR(CheckTrusted(*plan, run_id));
    requests.push_back(std::move(request));
    plans.push_back(*std::move(plan));
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    RETURN_IF_ERROR(Keep(requests[i], plans[i], ""));
  }
  hub_.Notify(run_id);
  return plans;
}

std::optional<v1::Plan> Planning::Replan(const std::string& run_id,
                                         const std::string& plan_id,
                                         int64_t measured_peak_bytes) {
  int64_t excess = 0;
  int64_t more_bytes = 0;
  const Status loaded = store_.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const v1::Run run, LoadRun(db, run_id));
    if (run.plan_id() != plan_id) return OkStatus();
    ASSIGN_OR_RETURN(const PlanRow old, LoadPlan(db, plan_id));
    if (old.plan.replan() >= kMaxReplans) return OkStatus();
    excess = measured_peak_bytes - old.plan.budget_bytes();
    more_bytes = measured_peak_bytes - old.plan.peak_bytes();
    return OkStatus();
  });
  if (!loaded.ok() || excess <= 0) return std::nullopt;
  StatusOr<v1::Plan> plan = Replace(run_id, plan_id, more_bytes, {});
  if (plan.ok() && plan->feasible()) return *std::move(plan);
  const std::string why =
      plan.ok() ? plan->sentence() : std::string(plan.status().message());
  LogWarning(
      "not_replaced",
      StrCat("run ", run_id, ": measured ", measured_peak_bytes, " bytes, ",
             excess, " above the budget of plan ", plan_id, ": ", why),
      {{"run_id", run_id},
       {"plan_id", plan_id},
       {"measured_bytes", measured_peak_bytes}});
  return std::nullopt;
}

}  // namespace reprise::server
