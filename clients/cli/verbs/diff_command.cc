// SPDX-License-Identifier: Apache-2.0
//
// `reprise diff A B`: what differs at the peaks of two runs or plans. Files are
// compared here, what is stored by its server; both by formats/convert/compare.h.
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/verbs/file_plan.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/compare.h"
#include "formats/convert/graph_json.h"

namespace reprise::cli {
namespace {

StatusOr<formats::PeakSide> SideOfPlanFile(const std::string& path,
                                           const std::string& text) {
  ASSIGN_OR_RETURN(const formats::PlanText read, ReadPlan(path, text));
  ASSIGN_OR_RETURN(const std::string graph_path, FindGraphOf(path, read.graph));
  if (!read.plan.feasible()) {
    return FailedPrecondition(
        StrCat(path, ": says that no plan fits and holds no schedule; compare ",
               graph_path, " instead"));
  }
  ASSIGN_OR_RETURN(const CheckedPlan checked,
                   CheckPlanFile(path, read.plan, graph_path));
  ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(graph_path));
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
    if (is_plan) return SideOfPlanFile(path, text);
    ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(path));
    return formats::SideOfGraph(file.graph, file.graph_id);
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
    verb.Add("B", b_, "Another; a file only where A is one",
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
    const bool are_files = LooksLikeFile(a_);
    if (LooksLikeFile(b_) != are_files) {
      return console.UsageError(
          StrCat(a_, ", ", b_,
                 ": a file is compared with a file; import it first to compare "
                 "it with what a server has"));
    }
    const StatusOr<v1::Comparison> found =
        are_files ? CompareFiles() : CompareStored(globals);
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
  bool exit_code_ = false;
  int most_ = 20;
};

}  // namespace

std::unique_ptr<Command> MakeDiffCommand() {
  return std::make_unique<DiffCommand>();
}

}  // namespace reprise::cli
