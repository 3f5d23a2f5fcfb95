// SPDX-License-Identifier: Apache-2.0
//
// ApplyBudget: makes the plans of a running job again within another budget and
// sends them to its processes, which take them between two steps. A job that
// trains without a plan takes only the budget: it captures a step and asks for a
// plan of its own.
#include <algorithm>
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
      ASSIGN_OR_RETURN(const std::string run_id,
                       ResolveRunId(db, request_.run_id()));
      ASSIGN_OR_RETURN(run, LoadRun(db, run_id));
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
  PlanningHooks Hooks() const {
    return {.cancelled = [this] { return call_.cancelled(); },
            .on_progress =
                [this](const v1::PlanProgress& progress) {
                  if (call_.unsent() > 8) return;
                  v1::PlanEvent event;
                  *event.mutable_progress() = progress;
                  call_.Send(event);
                }};
  }

  Status Change(const v1::Run& run, const std::vector<std::string>& old) {
    ASSIGN_OR_RETURN(const std::vector<v1::Plan> plans,
                     services_.planning.Rebudget(run.run_id(), old,
                                                 request_.budget(), Hooks()));
    if (plans.back().feasible()) {
      for (size_t i = 0; i < plans.size(); ++i) {
        // The same plan again has nothing to replace.
        if (plans[i].plan_id() == old[i]) continue;
        RETURN_IF_ERROR(Push(run, plans[i], old[i]));
      }
    }
    Answer(plans.back());
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
                     services_.planning.Make(request, Hooks()));
    if (plan.feasible()) {
      RETURN_IF_ERROR(Push(run, plan, ""));
    }
    Answer(plan);
    return OkStatus();
  }

  Status Push(const v1::Run& run, const v1::Plan& plan,
              const std::string& replaces) {
    const int sent = services_.push_plan
                         ? services_.push_plan(run.run_id(), plan, replaces)
                         : 0;
    if (sent == 0) {
      return FailedPrecondition(StrCat("no process of run ", run.run_id(),
                                       " is connected to this server"));
    }
    LogInfo("budget_applied",
            StrCat("run ", run.run_id(), ": budget ", request_.budget(),
                   " is sent to the job"),
            {{"run_id", run.run_id()}, {"plan_id", plan.plan_id()}});
    return OkStatus();
  }

  void Answer(const v1::Plan& plan) {
    v1::PlanEvent event;
    *event.mutable_plan() = plan;
    call_.Send(event);
  }

  Services& services_;
  const v1::ApplyBudgetRequest& request_;
  Call& call_;
};

}  // namespace

void StartApplyBudget(Services& services,
                      std::shared_ptr<const v1::ApplyBudgetRequest> request,
                      std::shared_ptr<Call> call) {
  auto work = [&services, request, call] {
    call->Finish(BudgetChange(services, *request, *call).Run());
  };
  if (services.planners.Post(std::move(work), Lane::kJob)) return;
  call->Finish(ResourceExhausted(
      "too many plans are waiting; try again when some are done"));
}

}  // namespace reprise::server
