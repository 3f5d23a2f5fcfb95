// SPDX-License-Identifier: Apache-2.0
//
// reprise plan GRAPH --budget B: makes a plan. A file is planned in this
// process, without a server; for a graph id, the server that stores the graph
// plans it.
#include <string>
#include <utility>

#include "base/budget.h"
#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/core/plan_options.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/verbs/file_plan.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/digest.h"
#include "formats/convert/plan_json.h"
#include "formats/convert/sentence.h"

namespace reprise::cli {
namespace {

constexpr int kShownLines = 20;

class PlanCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "plan", "Make a plan: what to save and what to recompute in a budget");
    verb.Add("GRAPH", graph_, "A step graph file, or the id of a graph",
             {.required = true, .completes = Completes::kFiles});
    verb.Add("--budget,-b", budget_,
             "8GiB, 8GB, bytes, or 0.5x (static memory plus half of the "
             "dynamic memory)",
             {.required = true, .environment = "REPRISE_BUDGET"});
    flags_.Define(verb, /*with_strategy=*/true);
    verb.Add("--out,-o", out_,
             "File for the plan (GRAPH.plan.json; where that exists, "
             "GRAPH.BUDGET.plan.json)",
             {.completes = Completes::kFiles});
    verb.Flag("--force,!--no-force", force_, "Replace an existing file");
    verb.Flag("--explain,!--no-explain", explain_,
              "Say why as well, as `reprise explain` does");
    verb.Footer(
        "Exits with 3 when it is proven that no plan fits.\n\n"
        "Example:\n  reprise plan resnet.graph.json --budget 0.5x");
  }

  int Run(const Globals& globals, Console& console) override {
    const StatusOr<Budget> budget = ParseBudget(budget_);
    if (!budget.ok()) return console.UsageError(budget.status().message());
    is_file_ = Exists(graph_) || !formats::ParseHexId(graph_).ok();
    const auto options = flags_.Check(is_file_);
    if (!options.ok()) return console.UsageError(options.status().message());
    options_ = *options;

    // Check before the work, so that nobody waits for a plan that cannot be
    // written. A file that exists is no reason to say nothing of the budget.
    beside_ = out_.empty() && !force_;
    if (out_.empty() && !globals.json) out_ = PlanPathFor(graph_);
    if (!out_.empty() && (!is_file_ || Exists(graph_))) {
      const Status writable = CheckWritable(out_, /*force=*/true);
      if (!writable.ok()) return console.Error(writable);
    }
    const StatusOr<v1::Plan> plan =
        is_file_ ? PlanFile(console) : PlanStored(globals, console);
    if (!plan.ok()) {
      return budget_refused_ ? console.UsageError(plan.status().message())
                             : console.Error(plan.status());
    }
    return Report(globals, console, *plan);
  }

 private:
  // Plans in this process.
  StatusOr<v1::Plan> PlanFile(Console& console) {
    ASSIGN_OR_RETURN(FilePlan plan, PlanGraphFile(console, graph_, budget_,
                                                  options_, budget_refused_));
    if (explain_) explanation_ = ExplainFilePlan(plan);
    return std::move(plan.proto);
  }

  // Plans on the server.
  StatusOr<v1::Plan> PlanStored(const Globals& globals, Console& console) {
    ASSIGN_OR_RETURN(const ServerClient client,
                     ServerClient::ConnectOrStart(globals));
    v1::PlanRequest request;
    request.set_graph_id(graph_);
    request.set_budget(budget_);
    options_.Apply(request);
    StatusOr<v1::Plan> plan = client.Plan(request, console);
    budget_refused_ =
        !plan.ok() && plan.status().code() == Code::kInvalidArgument;
    if (plan.ok() && explain_) {
      ASSIGN_OR_RETURN(explanation_, client.Explain(plan->plan_id()));
    }
    return plan;
  }

  int Report(const Globals& globals, Console& console, const v1::Plan& plan) {
    const std::string text = formats::WritePlanText(plan, graph_);
    if (globals.json) {
      console.Raw(text);
    } else {
      console.Line(plan.sentence(), plan.feasible() ? Tone::kGood : Tone::kBad);
    }
    if (!plan.feasible()) {
      if (explain_ && !globals.json) {
        console.Raw(ExplanationText(explanation_, kShownLines));
      }
      if (!globals.json) NoteWhatFits(console, plan.infeasible());
      const bool searched = options_.strategy == planner::Strategy::kAuto;
      return searched && formats::Undecided(plan) ? kTimedOut : kNoPlan;
    }
    if (!globals.json) {
      console.Line(StrCat("  ", plan.saved_size(), " saved, ",
                          plan.recomputed_ops_size(), " recomputed",
                          OffloadedText(plan)));
      if (plan.interrupted()) {
        console.Line(CatchInterrupt::Asked()
                         ? "  interrupted: the best plan so far"
                         : StrCat("  stopped at the time limit of ",
                                  flags_.time_limit(),
                                  ": the best plan so far"));
      }
    }
    if (explain_ && !globals.json) {
      console.Raw(ExplanationText(explanation_, kShownLines) + "\n");
    }
    if (!out_.empty()) {
      Status written = WriteFile(out_, text, force_);
      if (beside_ && written.code() == Code::kAlreadyExists) {
        out_ = PlanPathBeside(out_, budget_);
        written = WriteFile(out_, text, /*force=*/false);
      }
      if (!written.ok()) return console.Error(written);
      if (!globals.json) {
        console.Line(StrCat("  wrote ", out_));
        console.Note(
            StrCat("\nNext:  reprise show ", out_, "   see what it changes"));
        NoteSweep(console);
      }
    }
    return kDone;
  }

  // Returns how many storages are offloaded, where any may be.
  static std::string OffloadedText(const v1::Plan& plan) {
    if (!plan.has_link()) return "";
    return StrCat(", ",
                  std::count(plan.decisions().begin(), plan.decisions().end(),
                             v1::DECISION_OFFLOAD),
                  " offloaded");
  }

  // Suggests a budget that works, if nothing fits in the given one.
  void NoteWhatFits(Console& console, const v1::Infeasible& why) const {
    const int64_t known = why.smallest_known_bytes();
    if (known <= 0) return;
    console.Note(StrCat("\nNext:  the same with --budget ", known, "   ",
                        formats::FormatBytesUp(known),
                        ", the smallest with a known plan"));
    NoteSweep(console);
  }

  void NoteSweep(Console& console) const {
    console.Note(StrCat("       reprise sweep ", graph_,
                        "   see what other budgets cost"));
  }

  std::string graph_;
  std::string budget_;
  PlanningFlags flags_{"4s"};
  std::string out_;
  bool force_ = false;
  bool explain_ = false;
  // Set by Run.
  PlanningOptions options_;
  bool beside_ = false;  // a file of the name that nobody asked for is kept
  v1::Explanation explanation_;
  bool is_file_ = true;
  bool budget_refused_ = false;
};

}  // namespace

std::unique_ptr<Command> MakePlanCommand() {
  return std::make_unique<PlanCommand>();
}

}  // namespace reprise::cli
