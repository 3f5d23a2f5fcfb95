// SPDX-License-Identifier: Apache-2.0
//
// ApplyBudget: makes the plans of a running job again within another budget and
// sends them to its processes, which take them between two steps. A job that
// trains without a plan takes only the budget: it captures a step and asks for a
// plan of its own.
//
// StartWindow: stores the window, so that its results can be distinguished from
// those of earlier windows, then sends it to the run's processes.
#include <map>
#include <vector>

#include "base/str_cat.h"
#include "formats/convert/capabilities.h"
#include "profiler/include/reprise_wire.h"
#include "server/core/log.h"
#include "server/service/calls/handlers.h"
#include "server/store/chunk_rows.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"
#include "server/store/window_rows.h"

namespace reprise::server {
namespace {

// What a job without a budget is asked about; its own request follows.
constexpr std::string_view kUnplannedExecutor = "tape:seeded_ok=1";

// Checks that a process of the run takes plans while it runs.
Status CheckTakesPlans(const v1::Run& run) {
  if (run.state() != v1::RUN_STATE_RUNNING) {
    return FailedPrecondition(StrCat(
        "run ", run.run_id(), " has ended: start it again with this budget"));
  }
  std::string why;
  for (const v1::SessionReport& session : run.sessions()) {
    for (const v1::Capability& one : session.capabilities()) {
      if (one.name() != "apply") continue;
      if (one.value() == "yes") return OkStatus();
      why = one.why();
    }
  }
  return FailedPrecondition(StrCat("run ", run.run_id(),
                                   " takes no plan while it runs",
                                   why.empty() ? "" : ": ", why));
}

// Returns the plans that the job runs now, one for each of its step graphs, the
// run's newest last. Empty: it trains without a plan.
StatusOr<std::vector<std::string>> PlansInForce(Database& db,
                                                const v1::Run& run) {
  ASSIGN_OR_RETURN(const std::vector<StateRow> states,
                   LoadPlanStates(db, run.run_id(), 0));
  std::map<std::string, std::string> by_graph;
  std::string newest_graph;
  for (const StateRow& row : states) {
    const std::string& plan_id = row.report.plan_id();
    if (row.report.state() == REPRISE_PLAN_NONE) {
      by_graph.clear();
    } else if (row.report.state() == REPRISE_PLAN_STOPPED) {
      std::erase_if(by_graph,
                    [&](const auto& one) { return one.second == plan_id; });
    } else if (row.report.state() == REPRISE_PLAN_APPLIED) {
      const StatusOr<PlanRow> plan = LoadPlan(db, plan_id);
      // A job may report a plan that this server did not make.
      if (!plan.ok()) continue;
      newest_graph = plan->plan.graph_id();
      by_graph[newest_graph] = plan_id;
    }
  }
  std::vector<std::string> plans;
  for (const auto& [graph, plan] : by_graph) {
    if (graph != newest_graph) plans.push_back(plan);
  }
  const auto newest = by_graph.find(newest_graph);
  if (newest != by_graph.end()) plans.push_back(newest->second);
  return plans;
}

class BudgetChange {
 public:
  BudgetChange(Services& services, const v1::ApplyBudgetRequest& request,
               Call& call)
      : services_(services), request_(request), call_(call) {}

  Status Run() {
    v1::Run run;
    std::vector<std::string> plans;
    RETURN_IF_ERROR(services_.store.Read([&](Database& db) -> Status {
      ASSIGN_OR_RETURN(run, LoadNamedRun(db, request_.run_id()));
      RETURN_IF_ERROR(AddSessionsAndWindow(db, run));
      ASSIGN_OR_RETURN(plans, PlansInForce(db, run));
      return OkStatus();
    }));
    RETURN_IF_ERROR(CheckTakesPlans(run));
    if (run.graph_id().empty()) {
      return FailedPrecondition(
          StrCat("run ", run.run_id(),
                 " has no step graph yet; ask again when a step is captured"));
    }
    return plans.empty() ? Begin(run) : Change(run, plans);
  }

 private:
  Status Change(const v1::Run& run, const std::vector<std::string>& old) {
    ASSIGN_OR_RETURN(const std::vector<v1::Plan> plans,
                     services_.planning.Rebudget(
                         run.run_id(), old, request_.budget(), HooksOf(call_)));
    if (plans.back().feasible()) {
      for (size_t i = 0; i < plans.size(); ++i) {
        // The same plan again has nothing to replace.
        if (plans[i].plan_id() == old[i]) continue;
        RETURN_IF_ERROR(Push(run, plans[i], old[i]));
      }
    }
    SendPlan(plans.back(), call_);
    return OkStatus();
  }

  // The job has no plan: the plan is only the answer, and brings the budget.
  Status Begin(const v1::Run& run) {
    v1::PlanRequest request;
    request.set_graph_id(run.graph_id());
    request.set_budget(request_.budget());
    ASSIGN_OR_RETURN(
        *request.mutable_capabilities(),
        formats::ParseCapabilities(std::string(kUnplannedExecutor)));
    ASSIGN_OR_RETURN(const v1::Plan plan,
                     services_.planning.Make(request, HooksOf(call_)));
    if (plan.feasible()) {
      RETURN_IF_ERROR(Push(run, plan, ""));
    }
    SendPlan(plan, call_);
    return OkStatus();
  }

  Status Push(const v1::Run& run, const v1::Plan& plan,
              const std::string& replaces) {
    if (services_.push_plan(run.run_id(), plan, replaces) == 0) {
      return FailedPrecondition(StrCat("no process of run ", run.run_id(),
                                       " is connected to this server"));
    }
    LogInfo("budget_applied",
            StrCat("run ", run.run_id(), ": budget ", request_.budget(),
                   " is sent to the job"),
            {{"run_id", run.run_id()}, {"plan_id", plan.plan_id()}});
    return OkStatus();
  }

  Services& services_;
  const v1::ApplyBudgetRequest& request_;
  Call& call_;
};

constexpr uint32_t kMostSteps = 1000;
// A window without any records after this time is considered over.
constexpr int64_t kPatienceNs = int64_t{60} * 1'000'000'000;

Status CheckRun(Database& db, const v1::Run& run,
                const v1::StartWindowRequest& request) {
  if (run.state() != v1::RUN_STATE_RUNNING) {
    return FailedPrecondition(
        StrCat("run ", run.run_id(),
               " has ended: there is no step left to be recorded"));
  }
  ASSIGN_OR_RETURN(const uint64_t last, LoadLastStep(db, run.run_id()));
  if (request.at_step() != 0 && request.at_step() <= last) {
    return InvalidArgument(StrCat("at_step: step ", request.at_step(),
                                  " has passed, the run is at ", last));
  }
  ASSIGN_OR_RETURN(const auto before, LoadWindow(db, run, {}));
  const bool waits = before && (before->state() == v1::WINDOW_STATE_ASKED ||
                                before->state() == v1::WINDOW_STATE_OPEN);
  const bool patient =
      waits && (before->at_step() > last ||
                RealtimeNs() - before->asked_ns() < kPatienceNs);
  if (patient) {
    return FailedPrecondition(
        StrCat("a window of ", before->steps(),
               " steps is under way; ask again when it is done"));
  }
  return OkStatus();
}

}  // namespace

Status ApplyBudget(Services& services, const v1::ApplyBudgetRequest& request,
                   Call& call) {
  return BudgetChange(services, request, call).Run();
}

StatusOr<v1::WindowStatus> StartWindow(Services& services,
                                       const v1::StartWindowRequest& request) {
  if (request.steps() < 1 || request.steps() > kMostSteps) {
    return InvalidArgument(
        StrCat("steps: must be 1 to ", kMostSteps, ", got ", request.steps()));
  }
  if (request.at_step() > uint64_t{1} << 62) {
    return InvalidArgument("at_step: no run gets that far");
  }
  v1::OpenWindow window;
  window.set_steps(request.steps());
  window.set_at_step(request.at_step());
  v1::Run run;
  RETURN_IF_ERROR(services.store.Write([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(run, LoadNamedRun(db, request.run_id()));
    RETURN_IF_ERROR(CheckRun(db, run, request));
    RETURN_IF_ERROR(InsertWindow(db, run.run_id(), window, RealtimeNs()));
    // Nothing is stored if no session could be asked.
    if (services.open_window(run.run_id(), window) > 0) return OkStatus();
    return FailedPrecondition(StrCat("no process of run ", run.run_id(),
                                     " is connected to this server"));
  }));
  LogInfo("window_asked",
          StrCat("window of ", request.steps(), " steps asked of run ",
                 run.run_id()),
          {{"run_id", run.run_id()}, {"steps", int64_t{request.steps()}}});
  services.hub.Notify(run.run_id());
  RETURN_IF_ERROR(services.store.Read(
      [&](Database& db) { return AddSessionsAndWindow(db, run); }));
  return run.window();
}

}  // namespace reprise::server
