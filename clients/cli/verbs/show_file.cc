// SPDX-License-Identifier: Apache-2.0
//
// reprise show RUN|PLAN|FILE: what is at the peak, and what a plan does about
// it. Files are read here; runs and plans come from the server.
#include <cassert>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/verbs/file_plan.h"
#include "clients/cli/verbs/peak_report.h"
#include "clients/cli/verbs/show_stored.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/json_fields.h"
#include "formats/convert/plan_json.h"
#include "formats/convert/sentence.h"
#include "planner/planner.h"

namespace reprise::cli {
namespace {

constexpr size_t kShownLargestStorages = 10;

// Returns the smallest budget not ruled out. A proof for one budget can be
// stronger than that for a smaller one, so it repeats until nothing changes.
StatusOr<planner::Infeasible> SmallestBudget(const planner::StepGraph& graph) {
  constexpr int kMostRounds = 20;
  planner::Request request;
  request.budget_bytes = 1;
  planner::Infeasible smallest;
  for (int round = 0; round < kMostRounds; ++round) {
    ASSIGN_OR_RETURN(const planner::Bound bound,
                     planner::LowerBound(graph, request));
    if (!bound.impossible) break;
    smallest = bound.infeasible;
    request.budget_bytes = smallest.smallest_budget_bytes;
  }
  return smallest;
}

// ---- A step graph ----------------------------------------------------------

struct PhaseCounts {
  int forward = 0, backward = 0, optimizer = 0;
};

PhaseCounts CountPhases(const planner::StepGraph& graph) {
  PhaseCounts counts;
  for (const planner::Op& op : graph.ops) {
    counts.forward += op.phase == planner::Phase::kForward;
    counts.backward += op.phase == planner::Phase::kBackward;
    counts.optimizer += op.phase == planner::Phase::kOptimizer;
  }
  return counts;
}

Status ShowGraph(const std::string& path, const Globals& globals,
                 Console& console) {
  ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(path));
  ASSIGN_OR_RETURN(const planner::StepGraph graph,
                   formats::ToPlanner(file.graph));
  const planner::Capabilities capabilities;
  ASSIGN_OR_RETURN(
      const PeakReport report,
      ReportPeak(graph, planner::BaseSchedule(graph, capabilities.free_policy),
                 capabilities));
  ASSIGN_OR_RETURN(const planner::Infeasible smallest, SmallestBudget(graph));
  const PhaseCounts phases = CountPhases(graph);
  if (globals.json) {
    std::string text = StrCat(
        "{\"graph\": ", formats::JsonText(path), ", \"graph_id\": \"",
        file.graph_id, "\", \"name\": ", formats::JsonText(graph.name),
        ", \"ops\": ", graph.op_count(), ", \"forward_ops\": ", phases.forward,
        ", \"backward_ops\": ", phases.backward,
        ", \"optimizer_ops\": ", phases.optimizer);
    text +=
        StrCat(", \"storages\": ", graph.storage_count(),
               ", \"static_bytes\": ", graph.static_bytes,
               ", \"base_peak_bytes\": ", report.evaluation.peak_bytes,
               ", \"base_time_ns\": ", report.evaluation.time_ns,
               ", \"smallest_budget_bytes\": ", smallest.smallest_budget_bytes,
               ", \"blocking_op\": ", smallest.blocking_op, ", ",
               PeakJson(graph, report), "}");
    console.Line(text);
    return OkStatus();
  }
  console.Line(StrCat(graph.name.empty() ? path : graph.name, ": ",
                      graph.op_count(), " ops (", phases.forward, " forward, ",
                      phases.backward, " backward, ", phases.optimizer,
                      " optimizer), ", graph.storage_count(), " storages"));
  console.Line(StrCat("  peak ", FormatBytes(report.evaluation.peak_bytes),
                      ", of it static ", FormatBytes(graph.static_bytes),
                      "; step ", FormatDuration(report.evaluation.time_ns)));
  if (smallest.blocking_op != planner::kNoOp) {
    console.Line(
        StrCat("  no plan fits in less than ",
               formats::FormatBytesUp(smallest.smallest_budget_bytes), ": op ",
               smallest.blocking_op, " ",
               graph.ops[static_cast<size_t>(smallest.blocking_op)].name,
               " needs that"));
  }
  console.Raw(PeakText(graph, report, kShownLargestStorages));
  console.Note(StrCat("\nNext:  reprise plan ", path, " --budget 0.5x"));
  return OkStatus();
}

// ---- A plan ----------------------------------------------------------------

// Returns the bytes alive while each exec of the schedule runs.
std::string MemoryJson(const CheckedPlan& checked) {
  std::vector<planner::MemoryPoint> profile;
  const StatusOr<planner::Evaluation> evaluation = planner::Evaluate(
      checked.graph, checked.schedule, checked.capabilities, &profile);
  assert(evaluation.ok() && "the schedule was checked before");
  std::string text = "\"memory\": [";
  for (size_t i = 0; i < profile.size(); ++i) {
    text += StrCat(i == 0 ? "" : ", ", profile[i].bytes);
  }
  return text + "]";
}

Status ShowPlan(const std::string& path, const std::string& text,
                const Globals& globals, Console& console) {
  ASSIGN_OR_RETURN(const formats::PlanText read, ReadPlan(path, text));
  const v1::Plan& plan = read.plan;
  const auto graph_path = FindGraphOf(path, read.graph);
  std::optional<CheckedPlan> checked;
  if (graph_path.ok() && plan.feasible()) {
    ASSIGN_OR_RETURN(checked, CheckPlanFile(path, plan, *graph_path));
  }
  if (globals.json) {
    std::string json = formats::WritePlanText(plan, read.graph);
    if (checked) {
      json.resize(json.rfind(" }"));
      json += StrCat(",\n  ", PeakJson(checked->graph, checked->report),
                     ",\n  ", MemoryJson(*checked), " }\n");
    }
    console.Raw(json);
    return OkStatus();
  }
  console.Line(plan.sentence(), plan.feasible() ? Tone::kGood : Tone::kBad);
  if (!plan.feasible()) return OkStatus();
  console.Line(StrCat("  ", plan.saved_size(), " saved, ",
                      plan.recomputed_ops_size(), " recomputed"));
  console.Line(
      StrCat("  plan ", plan.plan_id(), " of graph ", read.graph, ", by ",
             plan.solver(), " in ",
             FormatDuration(static_cast<int64_t>(plan.solve_ms() * 1e6))));
  if (checked) {
    console.Line("  checked: the schedule is valid and keeps its peak");
    console.Raw(
        PeakText(checked->graph, checked->report, kShownLargestStorages));
  } else {
    console.Note(StrCat("  graph ", read.graph,
                        " is not here: the schedule was not checked"));
  }
  return OkStatus();
}

class ShowCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "show", "Show a run, a plan or a file: peak, storages, decisions");
    verb.Add("WHAT", what_,
             "A run id (or its beginning, or \"latest\"), a plan id, "
             "or a file: step graph or plan",
             {.required = true, .completes = Completes::kRuns});
    verb.Footer(
        "Example:\n  reprise show latest\n  reprise show resnet.plan.json");
  }

  int Run(const Globals& globals, Console& console) override {
    if (LooksLikeFile(what_)) {
      return ShowFile(what_, globals, console);
    }
    const auto client = ServerClient::ConnectOrStart(globals);
    if (!client.ok()) return console.ConnectError(client.status());
    return ShowStored(what_, *client, globals, console);
  }

 private:
  std::string what_;
};

}  // namespace

int ShowFile(const std::string& path, const Globals& globals,
             Console& console) {
  const StatusOr<std::string> text =
      ReadFile(path, formats::kMaxGraphTextBytes);
  if (!text.ok()) return console.Error(text.status());
  const auto scan = formats::ScanJson(*text);
  const bool is_plan =
      scan.ok() && (scan->format.rfind("reprise.plan/", 0) == 0 ||
                    (!scan->has_format && scan->has_schedule));
  const Status status = is_plan ? ShowPlan(path, *text, globals, console)
                                : ShowGraph(path, globals, console);
  return status.ok() ? kDone : console.Error(status);
}

std::unique_ptr<Command> MakeShowCommand() {
  return std::make_unique<ShowCommand>();
}

}  // namespace reprise::cli
