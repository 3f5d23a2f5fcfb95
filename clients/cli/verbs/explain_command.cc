// SPDX-License-Identifier: Apache-2.0
//
// reprise explain: why a plan is as it is, or why there is none. Explains a
// step graph with --budget (planned first), a plan file whose graph is found,
// or a plan stored by the server, by its id or that of its run.
#include <string>

#include "base/budget.h"
#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/verbs/file_plan.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/digest.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/sentence.h"

namespace reprise::cli {
namespace {

class ExplainCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb =
        line.AddVerb("explain", "Say why a plan is as it is, or why none fits");
    verb.Add(
        "TARGET", target_,
        "A run id (or its beginning, or \"latest\"), a plan (file or id), or a "
        "step graph with --budget",
        {.required = true, .completes = Completes::kRuns});
    verb.Add("--budget,-b", budget_,
             "For a step graph: the budget to plan for, as in plan",
             {.environment = "REPRISE_BUDGET"});
    verb.Add("--top", most_, "Lines of each table, 1 to 1000",
             {.shows_default = true, .range = {{1, 1000}}});
    flags_.Define(verb, /*with_strategy=*/true);
    verb.Footer(
        "Exits with 3 when it is proven that no plan fits.\n\n"
        "Example:\n  reprise explain latest\n"
        "  reprise explain resnet.graph.json --budget 0.5x");
  }

  int Run(const Globals& globals, Console& console) override {
    const bool is_file = LooksLikeFile(target_);
    const auto options = flags_.Check(is_file);
    if (!options.ok()) return console.UsageError(options.status().message());
    options_ = *options;
    if (!budget_.empty()) {
      const StatusOr<Budget> budget = ParseBudget(budget_);
      if (!budget.ok()) return console.UsageError(budget.status().message());
    }
    StatusOr<v1::Explanation> explanation = NotFound("");
    if (is_file) {
      const auto text = ReadFile(target_, formats::kMaxGraphTextBytes);
      if (!text.ok()) return console.Error(text.status());
      const auto scan = formats::ScanJson(*text);
      const bool is_plan =
          scan.ok() && scan->format.rfind("reprise.plan/", 0) == 0;
      if (!is_plan && budget_.empty()) {
        return console.UsageError(StrCat(
            target_, ": a step graph is explained for a budget; add --budget"));
      }
      explanation =
          is_plan ? ExplainPlanFile(*text) : ExplainGraphFile(console);
    } else {
      explanation = ExplainStored(globals, console);
    }
    if (!explanation.ok()) {
      return wrong_usage_ ? console.UsageError(explanation.status().message())
                          : console.Error(explanation.status());
    }
    const v1::Plan& plan = explanation->plan();
    if (globals.json) {
      console.Line(ProtoToJson(*explanation));
    } else {
      console.Line(plan.sentence(), plan.feasible() ? Tone::kGood : Tone::kBad);
      console.Raw(ExplanationText(*explanation, most_));
    }
    if (plan.feasible()) return kDone;
    const bool searched = options_.strategy == planner::Strategy::kAuto;
    return searched && formats::Undecided(plan) ? kTimedOut : kNoPlan;
  }

 private:
  StatusOr<v1::Explanation> ExplainGraphFile(Console& console) {
    ASSIGN_OR_RETURN(
        const FilePlan plan,
        PlanGraphFile(console, target_, budget_, options_, wrong_usage_));
    return ExplainFilePlan(plan);
  }

  StatusOr<v1::Explanation> ExplainPlanFile(const std::string& text) {
    ASSIGN_OR_RETURN(const formats::PlanText read, ReadPlan(target_, text));
    ASSIGN_OR_RETURN(const std::string graph, FindGraphOf(target_, read.graph));
    if (!read.plan.feasible()) {
      return FailedPrecondition(StrCat(
          target_, ": holds no schedule; explain the graph instead: ",
          "reprise explain ", graph, " --budget ", read.plan.budget_bytes()));
    }
    ASSIGN_OR_RETURN(const CheckedPlan checked,
                     CheckPlanFile(target_, read.plan, graph));
    return ExplainCheckedPlan(checked, read.plan);
  }

  StatusOr<v1::Explanation> ExplainStored(const Globals& globals,
                                          Console& console) {
    ASSIGN_OR_RETURN(const ServerClient client,
                     ServerClient::ConnectOrStart(globals));
    std::string plan_id = target_, graph_id = target_;
    if (!formats::ParseHexId(target_).ok()) {
      ASSIGN_OR_RETURN(const v1::Run run, client.GetRun(target_));
      plan_id = run.plan_id();
      graph_id = run.graph_id();
      if (budget_.empty() ? plan_id.empty() : graph_id.empty()) {
        return FailedPrecondition(
            StrCat("run ", run.run_id(), ": has no ",
                   budget_.empty() ? "plan" : "graph",
                   " to explain; `reprise show` tells why"));
      }
    }
    if (budget_.empty()) return client.Explain(plan_id);
    v1::PlanRequest request;
    request.set_graph_id(graph_id);
    request.set_budget(budget_);
    options_.Apply(request);
    StatusOr<v1::Plan> plan = client.Plan(request, console);
    wrong_usage_ = !plan.ok() && plan.status().code() == Code::kInvalidArgument;
    if (!plan.ok()) return plan.status();
    return client.Explain(plan->plan_id());
  }

  std::string target_;
  std::string budget_;
  int most_ = 20;
  PlanningFlags flags_{"4s"};
  PlanningOptions options_;
  bool wrong_usage_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeExplainCommand() {
  return std::make_unique<ExplainCommand>();
}

}  // namespace reprise::cli
