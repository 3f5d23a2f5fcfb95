// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/file_plan.h"

#include <filesystem>
#include <utility>

#include "base/budget.h"
#include "base/str_cat.h"
#include "clients/cli/core/files.h"
#include "clients/cli/core/plan_options.h"
#include "formats/convert/capabilities.h"
#include "formats/convert/explain_proto.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/plan_proto.h"
#include "formats/solve/solve_plan.h"
#include "planner/construct/strategy.h"
#include "planner/explain/explain.h"
#include "planner/once/once.h"

namespace reprise::cli {

StatusOr<FilePlan> PlanGraphFile(Console& console, const std::string& path,
                                 const std::string& budget,
                                 const PlanningOptions& options,
                                 bool& wrong_usage) {
  ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(path));
  StatusOr<formats::Task> task = formats::MakeTask(
      file.graph, file.graph_id, budget, options.capabilities);
  // ReadGraph has checked the graph, so an error here concerns the budget.
  wrong_usage = !task.ok();
  if (!task.ok()) return task.status();

  const CatchInterrupt catch_interrupt;
  Watch watch(console, options.time_limit);
  FilePlan result{.task = *std::move(task), .plan = {}, .proto = {}};
  options.Apply(result.task.request);
  watch.Attach(result.task.request);
  ASSIGN_OR_RETURN(result.plan,
                   formats::SolvePlan(result.task.graph, result.task.request,
                                      {.threads = options.threads}));
  if (result.plan.undecided && CatchInterrupt::Asked()) {
    return Cancelled("interrupted before a plan was found");
  }
  result.proto = formats::ToProto(result.task, result.plan, watch.elapsed_ms());
  return result;
}

StatusOr<formats::PlanText> ReadPlan(const std::string& path,
                                     std::string_view text) {
  StatusOr<formats::PlanText> read = formats::ReadPlanText(text);
  if (read.ok()) return read;
  return Status(read.status().code(),
                StrCat(path, ": ", read.status().message()));
}

StatusOr<std::string> FindGraphOf(const std::string& plan_path,
                                  const std::string& graph) {
  namespace fs = std::filesystem;
  const std::string beside =
      (fs::path(plan_path).parent_path() / fs::path(graph).filename()).string();
  if (!graph.empty()) {
    if (Exists(graph)) return graph;
    if (Exists(beside)) return beside;
  }
  return NotFound(StrCat(plan_path, ": its graph ", graph,
                         " is not here; put it beside the plan"));
}

StatusOr<planner::Capabilities> CapabilitiesOf(const v1::Plan& plan) {
  v1::Capabilities named;
  named.set_executor(plan.executor());
  ASSIGN_OR_RETURN(
      named, formats::ParseCapabilities(formats::WalkedAs(named).executor()));
  named.set_seeded_ok(true);
  named.set_collective_ok(true);
  ASSIGN_OR_RETURN(planner::Capabilities can, formats::ToPlanner(named));
  can.link = formats::LinkOf(plan.link());
  return can;
}

StatusOr<CheckedPlan> CheckPlanFile(const std::string& path,
                                    const v1::Plan& plan,
                                    const std::string& graph_path) {
  ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(graph_path));
  if (!plan.graph_id().empty() && plan.graph_id() != file.graph_id) {
    return FailedPrecondition(
        StrCat(path, ": the plan is for graph ", plan.graph_id(), ", but ",
               graph_path, " is ", file.graph_id, "; make a new plan"));
  }
  CheckedPlan checked;
  ASSIGN_OR_RETURN(checked.graph, formats::ToPlanner(file.graph));
  ASSIGN_OR_RETURN(checked.capabilities, CapabilitiesOf(plan));
  ASSIGN_OR_RETURN(checked.schedule, formats::ToSchedule(plan, checked.graph));
  StatusOr<PeakReport> report =
      ReportPeak(checked.graph, checked.schedule, checked.capabilities);
  if (!report.ok()) {
    return InvalidArgument(
        StrCat(path, ": not a valid plan: ", report.status().message()));
  }
  if (checked.capabilities.execution != planner::Execution::kFree) {
    const auto once = planner::EvaluateOnce(
        planner::MakeProblem(checked.graph, checked.capabilities),
        checked.schedule);
    if (!once.ok()) {
      return InvalidArgument(StrCat(path, ": not a plan of executor ",
                                    plan.executor(), ": ",
                                    once.status().message()));
    }
  }
  if (report->evaluation.peak_bytes > plan.peak_bytes()) {
    return FailedPrecondition(StrCat(
        path, ": says its peak is ", plan.peak_bytes(),
        " bytes, but its schedule needs ", report->evaluation.peak_bytes));
  }
  checked.report = *std::move(report);
  return checked;
}

v1::Explanation ExplainFilePlan(const FilePlan& plan) {
  v1::Explanation explanation =
      formats::ToProto(plan.task.graph,
                       planner::Explain(plan.task.graph, plan.plan,
                                        plan.task.request.budget_bytes,
                                        plan.task.request.capabilities),
                       plan.task.reserve_bytes);
  *explanation.mutable_plan() = plan.proto;
  *explanation.mutable_capabilities() = plan.task.capabilities;
  return explanation;
}

v1::Explanation ExplainCheckedPlan(const CheckedPlan& checked,
                                   const v1::Plan& plan) {
  const int64_t reserve_bytes =
      plan.peak_bytes() - checked.report.evaluation.peak_bytes;
  const planner::Plan view = formats::ToPlanner(
      plan, checked.schedule, checked.report.evaluation, reserve_bytes);
  v1::Explanation explanation = formats::ToProto(
      checked.graph,
      planner::Explain(checked.graph, view, plan.budget_bytes() - reserve_bytes,
                       checked.capabilities),
      reserve_bytes);
  *explanation.mutable_plan() = plan;
  // The plan file does not have this.
  explanation.mutable_plan()->set_peak_op(
      static_cast<uint32_t>(checked.report.evaluation.peak_op));
  return explanation;
}

void PlanningOptions::Apply(planner::Request& request) const {
  request.capabilities.link = link;
  request.target_gap = target_gap;
  request.seed = seed;
  request.until_stopped = has_time_limit;
  request.strategy = strategy;
}

namespace {

template <typename Request>
void ApplyShared(const PlanningOptions& options, Request& request) {
  *request.mutable_capabilities() = options.capabilities;
  if (options.has_time_limit) {
    request.set_time_limit_ms(
        static_cast<uint32_t>(options.time_limit.count()));
  }
  request.set_target_gap(options.target_gap);
  request.set_seed(options.seed);
  request.set_threads(static_cast<uint32_t>(options.threads));
}

}  // namespace

void PlanningOptions::Apply(v1::PlanRequest& request) const {
  ApplyShared(*this, request);
  request.set_strategy(formats::ToProto(strategy));
}

void PlanningOptions::Apply(v1::SweepRequest& request) const {
  ApplyShared(*this, request);
}

void PlanningFlags::Define(Verb& verb, bool with_strategy) {
  verb_ = &verb;
  verb.Add("--executor", executor_,
           "Who will run it: free (any schedule; default for files), "
           "once (each op at most once more, in the backward), tape "
           "(PyTorch; default for ids), joint (torch.compile), tf-graph "
           "(TensorFlow). Keys refine it: "
           "free:seeded_ok=1 runs random ops again",
           {.offers = {"free", "once", "tape", "joint", "tf-graph"}});
  verb.Add("--time-limit", time_limit_,
           "Search this long unless the gap is reached before. "
           "Without it: a fixed amount of work, and this at most",
           {.shows_default = true});
  if (with_strategy) {
    verb.Add("--strategy", strategy_,
             "auto, or a plan by name: memory (about sqrt(n) "
             "checkpoints), speed (keep convolutions and matrix "
             "products), collection (keep what is pinned), per-block "
             "(recompute each block), save-all",
             {.shows_default = true,
              .offers = {"auto", "memory", "speed", "collection", "per-block",
                         "save-all"}});
  }
  if (with_strategy) {
    verb.Add("--host-budget", host_budget_,
             "Host memory that tensors may move to meanwhile: 60GiB. For graph "
             "files; jobs take it by `reprise run --host-budget`");
    verb.Add(
        "--link", link_,
        "How fast they move there: 55GB/s; where it differs, out and back: "
        "170GB/s:400GB/s");
  }
  verb.Add("--gap", gap_,
           "Stop when the plan is at most this far above the bound, in "
           "% of the step time",
           {.shows_default = true});
  verb.Add("--seed", seed_, "Seed of the search", {.shows_default = true});
  verb.Add("--threads", threads_, "Searches side by side, with --time-limit",
           {.shows_default = true, .range = {{1, 256}}});
}

namespace {

// Of one copy: an event, a wait and a launch.
constexpr int64_t kCopyLatencyNs = 10'000;

// Parses "55GB/s".
StatusOr<int64_t> ParseRate(const std::string& text) {
  const bool per_second = text.ends_with("/s");
  const StatusOr<Budget> bytes =
      ParseBudget(text.substr(0, per_second ? text.size() - 2 : 0));
  if (per_second && bytes.ok() && bytes->kind == Budget::Kind::kBytes) {
    return bytes->bytes;
  }
  return InvalidArgument(StrCat("--link ", text.substr(0, 40),
                                ": must be bytes a second, such as 55GB/s"));
}

}  // namespace

StatusOr<PlanningOptions> PlanningFlags::Check(bool is_file) const {
  PlanningOptions options;
  ASSIGN_OR_RETURN(options.time_limit, ParseTimeLimit(time_limit_));
  ASSIGN_OR_RETURN(options.target_gap, ParseGap(gap_));
  const auto strategy = planner::ParseStrategy(strategy_);
  if (!strategy.ok()) {
    return InvalidArgument(StrCat("--", strategy.status().message()));
  }
  options.strategy = *strategy;
  const std::string fallback = is_file ? "free" : "tape";
  ASSIGN_OR_RETURN(
      options.capabilities,
      ExecutorCapabilities(executor_.empty() ? fallback : executor_));
  if (link_.empty() != host_budget_.empty()) {
    return InvalidArgument(
        "--host-budget and --link: give both, such as --link 55GB/s "
        "--host-budget 60GiB");
  }
  if (!link_.empty()) {
    if (!is_file) {
      return InvalidArgument(
          "--host-budget: plans graph files alone; a job takes it by `reprise "
          "run --host-budget`");
    }
    const size_t colon = link_.find(':');
    const std::string out = link_.substr(0, colon);
    ASSIGN_OR_RETURN(options.link.out_bytes_per_s, ParseRate(out));
    ASSIGN_OR_RETURN(
        options.link.in_bytes_per_s,
        ParseRate(colon == std::string::npos ? out : link_.substr(colon + 1)));
    options.link.latency_ns = kCopyLatencyNs;
    const StatusOr<Budget> host = ParseBudget(host_budget_);
    if (!host.ok() || host->kind != Budget::Kind::kBytes) {
      return InvalidArgument(StrCat("--host-budget ",
                                    host_budget_.substr(0, 40),
                                    ": must be bytes, such as 60GiB"));
    }
    options.link.host_bytes = host->bytes;
  }
  options.seed = seed_;
  options.threads = threads_;
  options.has_time_limit = verb_ != nullptr && verb_->Given("--time-limit");
  return options;
}

}  // namespace reprise::cli
