// SPDX-License-Identifier: Apache-2.0
//
// reprise plan GRAPH --budget B: makes a plan. A file is planned here, without
// any server; a graph id is planned by the server that stores the graph.
#include <CLI/CLI.hpp>
#include <string>
#include <utility>

#include "base/budget.h"
#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/exit_code.h"
#include "clients/cli/files.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/plan_options.h"
#include "clients/cli/server_client.h"
#include "planner/planner.h"
#include "server/convert/digest.h"
#include "server/convert/plan_json.h"
#include "server/convert/plan_proto.h"
#include "server/convert/sentence.h"

namespace reprise::cli {
namespace {

class PlanCommand : public Command {
 public:
  CLI::App* Define(CLI::App& app) override;
  int Run(const Globals& globals, Console& console) override;

 private:
  // Plans here, in this process.
  StatusOr<v1::Plan> PlanFile(Console& console, const std::string& path);
  // Asks the server.
  StatusOr<v1::Plan> PlanStored(const Globals& globals, Console& console);
  int Report(const Globals& globals, Console& console, const v1::Plan& plan);

  std::string graph_;
  std::string budget_;
  std::string executor_;
  std::string time_limit_ = "4s";
  std::string gap_ = "0.1%";
  std::string out_;
  uint64_t seed_ = 1;
  bool force_ = false;
  // Set by Run.
  v1::Capabilities capabilities_;
  std::chrono::milliseconds limit_{0};
  double target_gap_ = 0;
  bool is_file_ = true;
  bool budget_refused_ = false;
};

CLI::App* PlanCommand::Define(CLI::App& app) {
  CLI::App* sub = app.add_subcommand(
      "plan", "Make a plan: what to save and what to recompute in a budget");
  sub->add_option("GRAPH", graph_, "A step graph file, or the id of a graph")
      ->required();
  sub->add_option("--budget,-b", budget_,
                  "8GiB, 8GB, bytes, or 0.5x (static memory plus half of the "
                  "dynamic memory)")
      ->required()
      ->envname("REPRISE_BUDGET");
  sub->add_option("--executor", executor_,
                  "Who will run it: free (any schedule; default for files) or "
                  "tape (PyTorch; default for ids)");
  sub->add_option("--time-limit", time_limit_,
                  "Time after which the best plan so far is taken")
      ->capture_default_str();
  sub->add_option("--gap", gap_,
                  "Stop when the plan is at most this far above the bound, in "
                  "% of the step time")
      ->capture_default_str();
  sub->add_option("--seed", seed_, "Seed of the search")->capture_default_str();
  sub->add_option("--out,-o", out_, "File for the plan (GRAPH.plan.json)");
  sub->add_flag("--force,!--no-force", force_, "Replace an existing file");
  sub->footer(
      "Exits with 3 when it is proven that nothing fits.\n\n"
      "Example:\n  reprise plan resnet.graph.json --budget 0.5x");
  return sub;
}

int PlanCommand::Run(const Globals& globals, Console& console) {
  const StatusOr<Budget> budget = ParseBudget(budget_);
  if (!budget.ok()) return console.UsageError(budget.status().message());
  const auto limit = ParseTimeLimit(time_limit_);
  if (!limit.ok()) return console.UsageError(limit.status().message());
  limit_ = *limit;
  const StatusOr<double> gap = ParseGap(gap_);
  if (!gap.ok()) return console.UsageError(gap.status().message());
  target_gap_ = *gap;
  is_file_ = Exists(graph_) || !server::ParseHexId(graph_).ok();
  if (executor_.empty()) executor_ = is_file_ ? "free" : "tape";
  auto capabilities = ExecutorCapabilities(executor_);
  if (!capabilities.ok()) {
    return console.UsageError(capabilities.status().message());
  }
  capabilities_ = *std::move(capabilities);

  // Asked before the work, so that nobody waits for a plan that has no place.
  if (out_.empty() && !globals.json) out_ = PlanPathFor(graph_);
  if (!out_.empty() && (!is_file_ || Exists(graph_))) {
    const Status writable = CheckWritable(out_, force_);
    if (!writable.ok()) return console.Error(writable);
  }
  const StatusOr<v1::Plan> plan =
      is_file_ ? PlanFile(console, graph_) : PlanStored(globals, console);
  console.ClearProgress();
  if (!plan.ok()) {
    return budget_refused_ ? console.UsageError(plan.status().message())
                           : console.Error(plan.status());
  }
  return Report(globals, console, *plan);
}

StatusOr<v1::Plan> PlanCommand::PlanFile(Console& console,
                                         const std::string& path) {
  ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(path));
  StatusOr<server::Task> task =
      server::MakeTask(file.graph, file.graph_id, budget_, capabilities_);
  // The graph was checked by ReadGraph: what is left to refuse is the budget.
  budget_refused_ = !task.ok();
  if (!task.ok()) return task.status();

  const CatchInterrupt catch_interrupt;
  Watch watch(console, limit_);
  task->request.seed = seed_;
  task->request.target_gap = target_gap_;
  watch.Attach(task->request);
  ASSIGN_OR_RETURN(const planner::Plan plan,
                   planner::MakePlan(task->graph, task->request));
  if (plan.undecided && CatchInterrupt::Asked()) {
    return Cancelled("interrupted before a plan was found");
  }
  return server::ToProto(*task, plan, watch.elapsed_ms());
}

StatusOr<v1::Plan> PlanCommand::PlanStored(const Globals& globals,
                                           Console& console) {
  ASSIGN_OR_RETURN(const ServerClient client,
                   ServerClient::Connect(globals.server));
  v1::PlanRequest request;
  request.set_graph_id(graph_);
  request.set_budget(budget_);
  *request.mutable_capabilities() = capabilities_;
  request.set_time_limit_ms(static_cast<uint32_t>(limit_.count()));
  request.set_seed(seed_);
  request.set_target_gap(target_gap_);
  StatusOr<v1::Plan> plan = client.Plan(request, console);
  budget_refused_ =
      !plan.ok() && plan.status().code() == Code::kInvalidArgument;
  return plan;
}

int PlanCommand::Report(const Globals& globals, Console& console,
                        const v1::Plan& plan) {
  const std::string text = server::WritePlanText(plan, graph_);
  if (globals.json) {
    console.Raw(text);
  } else {
    console.Line(plan.sentence(), plan.feasible() ? Tone::kGood : Tone::kBad);
  }
  if (!plan.feasible()) {
    return server::Undecided(plan) ? kTimedOut : kNoPlan;
  }
  if (!globals.json) {
    console.Line(StrCat("  ", plan.saved_size(), " saved, ",
                        plan.recomputed_ops_size(), " recomputed"));
    if (plan.interrupted()) {
      console.Line(CatchInterrupt::Asked()
                       ? "  interrupted: the best plan so far"
                       : StrCat("  stopped at the time limit of ", time_limit_,
                                ": the best plan so far"));
    }
  }
  if (!out_.empty()) {
    const Status written = WriteFile(out_, text, force_);
    if (!written.ok()) return console.Error(written);
    if (!globals.json) {
      console.Line(StrCat("  wrote ", out_));
      console.Note(StrCat("\nNext:  reprise show ", out_,
                          "   see what it changes\n       reprise sweep ",
                          graph_, "   see what other budgets cost"));
    }
  }
  return kDone;
}

}  // namespace

std::unique_ptr<Command> MakePlanCommand() {
  return std::make_unique<PlanCommand>();
}

}  // namespace reprise::cli
