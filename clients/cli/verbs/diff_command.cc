// SPDX-License-Identifier: Apache-2.0
//
// `reprise diff A B`: what differs at the peaks of two runs or plans. Files are
// compared here, also with what a server has stored, and two stored ones by
// their server; all by formats/convert/compare.h.
#include <optional>
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/verbs/file_plan.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/capabilities.h"
#include "formats/convert/compare.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/plan_proto.h"

namespace reprise::cli {
namespace {

// The step without a plan.
StatusOr<formats::PeakSide> SideOfGraphFile(const std::string& path) {
  ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(path));
  ASSIGN_OR_RETURN(const planner::StepGraph graph,
                   formats::ToPlanner(file.graph));
  ASSIGN_OR_RETURN(
      formats::PeakSide side,
      formats::SideOfSchedule(
          file.graph, graph,
          planner::BaseSchedule(graph, planner::FreePolicy::kEager), {}, 0));
  side.facts.set_graph_id(file.graph_id);
  side.facts.set_peak_of("predicted without a plan");
  side.facts.set_base_peak_bytes(side.facts.peak_bytes());
  side.facts.set_base_step_ns(side.facts.step_ns());
  return side;
}

StatusOr<formats::PeakSide> SideOfPlanFile(const std::string& path,
                                           const std::string& text) {
  ASSIGN_OR_RETURN(const formats::PlanText read, ReadPlan(path, text));
  const auto graph_path = FindGraphOf(path, read.graph);
  if (!graph_path) {
    return NotFound(StrCat(path, ": its graph ", read.graph,
                           " is not here; put it beside the plan"));
  }
  if (!read.plan.feasible()) {
    return FailedPrecondition(
        StrCat(path, ": says that no plan fits and holds no schedule; compare ",
               *graph_path, " instead"));
  }
  ASSIGN_OR_RETURN(const CheckedPlan checked,
                   CheckPlanFile(path, read.plan, *graph_path));
  ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(*graph_path));
  const int64_t reserve_bytes =
      read.plan.peak_bytes() - checked.report.evaluation.peak_bytes;
  return formats::SideOfPlan(file.graph, checked.graph, read.plan,
                             checked.schedule, checked.capabilities,
                             reserve_bytes);
}

StatusOr<formats::PeakSide> SideOfFile(const std::string& path) {
  StatusOr<formats::PeakSide> side = [&]() -> StatusOr<formats::PeakSide> {
    ASSIGN_OR_RETURN(const std::string text,
                     ReadFile(path, formats::kMaxGraphTextBytes));
    const auto scan = formats::ScanJson(text);
    const bool is_plan =
        scan.ok() && scan->format.rfind("reprise.plan/", 0) == 0;
    return is_plan ? SideOfPlanFile(path, text) : SideOfGraphFile(path);
  }();
  if (side.ok()) {
    side->facts.set_name(path);
    side->facts.set_id(path);
  }
  return side;
}

// The step graph as the server has it, without a plan.
StatusOr<formats::PeakSide> SideOfStoredGraph(const ServerClient& client,
                                              const std::string& graph_id) {
  ASSIGN_OR_RETURN(const v1::StepGraph proto, client.GetGraph(graph_id));
  return formats::SideOfGraph(proto, graph_id);
}

StatusOr<formats::PeakSide> SideOfStoredPlan(const ServerClient& client,
                                             const v1::Plan& plan) {
  if (!plan.feasible()) return SideOfStoredGraph(client, plan.graph_id());
  // Its explanation says what it was made for.
  ASSIGN_OR_RETURN(const v1::Explanation explained,
                   client.Explain(plan.plan_id()));
  ASSIGN_OR_RETURN(const planner::Capabilities capabilities,
                   formats::ToPlanner(explained.capabilities()));
  ASSIGN_OR_RETURN(const v1::StepGraph proto, client.GetGraph(plan.graph_id()));
  ASSIGN_OR_RETURN(const planner::StepGraph graph, formats::ToPlanner(proto));
  ASSIGN_OR_RETURN(const planner::Schedule schedule,
                   formats::ToSchedule(plan, graph));
  ASSIGN_OR_RETURN(const planner::Evaluation evaluation,
                   planner::Evaluate(graph, schedule, capabilities));
  return formats::SideOfPlan(proto, graph, plan, schedule, capabilities,
                             plan.peak_bytes() - evaluation.peak_bytes);
}

// A run or a plan of a server, as it compares them itself.
StatusOr<formats::PeakSide> SideOfStored(const ServerClient& client,
                                         const std::string& id) {
  const StatusOr<v1::Run> run = client.GetRun(id);
  if (!run.ok()) {
    if (run.status().code() != Code::kNotFound) return run.status();
    const StatusOr<v1::Plan> plan = client.GetPlan(id);
    if (!plan.ok()) return run.status();
    ASSIGN_OR_RETURN(formats::PeakSide side, SideOfStoredPlan(client, *plan));
    side.facts.set_id(id);
    side.facts.set_name(id);
    return side;
  }
  if (run->plan_id().empty() && run->graph_id().empty()) {
    return FailedPrecondition(
        StrCat("run ", run->run_id(),
               ": has no step graph, only memory that was measured; compare it "
               "with another stored run"));
  }
  StatusOr<formats::PeakSide> side = [&]() -> StatusOr<formats::PeakSide> {
    if (run->plan_id().empty()) {
      return SideOfStoredGraph(client, run->graph_id());
    }
    ASSIGN_OR_RETURN(const v1::Plan plan, client.GetPlan(run->plan_id()));
    return SideOfStoredPlan(client, plan);
  }();
  if (!side.ok()) return side.status();
  side->facts.set_id(run->run_id());
  side->facts.set_name(run->name().empty() ? run->run_id() : run->name());
  return side;
}

class DiffCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "diff", "Compare two runs or plans: whose bytes differ at the peak");
    verb.Add(
        "A", a_,
        "A run id (or its beginning, or \"latest\"), a plan id, or a file: "
        "plan or step graph",
        {.required = true, .completes = Completes::kRuns});
    verb.Add("B", b_, "The same",
             {.required = true, .completes = Completes::kRuns});
    verb.Flag("--all,!--only-differences", all_, "Also what is equal");
    verb.Add("--top", most_, "Lines of each table, 1 to 500",
             {.shows_default = true, .range = {{1, 500}}});
    verb.Flag("--exit-code", exit_code_, "Exit with 1 if they differ");
    verb.Footer(
        "Without --exit-code exits with 0 whether or not they differ; `equal` "
        "of --json says it.\n\n"
        "Example:\n  reprise diff a.plan.json b.plan.json");
  }

  int Run(const Globals& globals, Console& console) override {
    const bool files[2] = {LooksLikeFile(a_), LooksLikeFile(b_)};
    const StatusOr<v1::Comparison> found = files[0] || files[1]
                                               ? CompareHere(files, globals)
                                               : CompareStored(globals);
    if (!found.ok()) return console.Error(found.status());
    const int code = exit_code_ && !found->equal() ? kFailed : kDone;
    if (globals.json) {
      console.Line(ProtoToJson(*found));
      return code;
    }
    console.Line(found->sentence(),
                 found->equal() ? Tone::kGood : Tone::kPlain);
    console.Raw(ComparisonText(*found, all_, most_));
    return code;
  }

 private:
  StatusOr<v1::Comparison> CompareHere(const bool (&files)[2],
                                       const Globals& globals) const {
    std::optional<ServerClient> client;
    if (!files[0] || !files[1]) {
      ASSIGN_OR_RETURN(client, ServerClient::ConnectOrStart(globals));
    }
    const auto side = [&](const std::string& text, bool is_file) {
      return is_file ? SideOfFile(text) : SideOfStored(*client, text);
    };
    ASSIGN_OR_RETURN(const formats::PeakSide a, side(a_, files[0]));
    ASSIGN_OR_RETURN(const formats::PeakSide b, side(b_, files[1]));
    return formats::Compare(a, b);
  }

  StatusOr<v1::Comparison> CompareStored(const Globals& globals) const {
    ASSIGN_OR_RETURN(const ServerClient client,
                     ServerClient::ConnectOrStart(globals));
    return client.Compare(a_, b_);
  }

  std::string a_;
  std::string b_;
  bool all_ = false;
  bool exit_code_ = false;
  int most_ = 20;
};

}  // namespace

std::unique_ptr<Command> MakeDiffCommand() {
  return std::make_unique<DiffCommand>();
}

}  // namespace reprise::cli
