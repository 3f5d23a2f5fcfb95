// SPDX-License-Identifier: Apache-2.0
//
// `reprise diff A B`: what differs at the peaks of two runs or plans. Files are
// compared here, runs and stored plans by their server; both by
// formats/convert/compare.h.
#include <string>
#include <utility>

#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/diff_text.h"
#include "clients/cli/exit_code.h"
#include "clients/cli/file_plan.h"
#include "clients/cli/files.h"
#include "clients/cli/proto_json.h"
#include "clients/cli/server_client.h"
#include "formats/convert/compare.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/json_scan.h"
#include "formats/convert/plan_json.h"

namespace reprise::cli {
namespace {

// Returns whether it is an existing path, or can only be one.
bool LooksLikeFile(const std::string& text) {
  return Exists(text) || text.find('/') != std::string::npos ||
         text.find('.') != std::string::npos;
}

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
  StatusOr<formats::PlanText> read = formats::ReadPlanText(text);
  if (!read.ok()) {
    return Status(read.status().code(),
                  StrCat(path, ": ", read.status().message()));
  }
  const auto graph_path = FindGraphOf(path, read->graph);
  if (!graph_path) {
    return NotFound(StrCat(path, ": its graph ", read->graph,
                           " is not here; put it beside the plan"));
  }
  if (!read->plan.feasible()) {
    return FailedPrecondition(
        StrCat(path, ": says that nothing fits and holds no schedule; compare ",
               *graph_path, " instead"));
  }
  ASSIGN_OR_RETURN(const CheckedPlan checked,
                   CheckPlanFile(path, read->plan, *graph_path));
  ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(*graph_path));
  const int64_t reserve_bytes =
      read->plan.peak_bytes() - checked.report.evaluation.peak_bytes;
  return formats::SideOfPlan(file.graph, checked.graph, read->plan,
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
    verb.Add("B", b_, "The same; both are files, or both are stored",
             {.required = true, .completes = Completes::kRuns});
    verb.Flag("--all,!--only-differences", all_, "Also what is equal");
    verb.Add("--top", most_, "Lines of each table, 1 to 500",
             {.shows_default = true, .range = {{1, 500}}});
    verb.Footer(
        "Exits with 0 whether or not they differ; `equal` of --json says "
        "it.\n\n"
        "Example:\n  reprise diff a.plan.json b.plan.json");
  }

  int Run(const Globals& globals, Console& console) override {
    const bool files[2] = {LooksLikeFile(a_), LooksLikeFile(b_)};
    if (files[0] != files[1]) {
      const std::string& file = files[0] ? a_ : b_;
      return console.UsageError(
          StrCat(file, ": is a file and ", files[0] ? b_ : a_,
                 " is not; compare two files, or two runs or plans that are "
                 "stored (`reprise import` stores a file)"));
    }
    const StatusOr<v1::Comparison> found =
        files[0] ? CompareFiles() : CompareStored(globals);
    if (!found.ok()) return console.Error(found.status());
    if (globals.json) {
      console.Line(ProtoToJson(*found));
      return kDone;
    }
    console.Line(found->sentence(),
                 found->equal() ? Tone::kGood : Tone::kPlain);
    console.Raw(ComparisonText(*found, all_, most_));
    return kDone;
  }

 private:
  StatusOr<v1::Comparison> CompareFiles() const {
    ASSIGN_OR_RETURN(const formats::PeakSide a, SideOfFile(a_));
    ASSIGN_OR_RETURN(const formats::PeakSide b, SideOfFile(b_));
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
  int most_ = 20;
};

}  // namespace

std::unique_ptr<Command> MakeDiffCommand() {
  return std::make_unique<DiffCommand>();
}

}  // namespace reprise::cli
