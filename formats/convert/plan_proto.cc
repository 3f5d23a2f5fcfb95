// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/plan_proto.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/budget.h"
#include "base/str_cat.h"
#include "formats/convert/capabilities.h"
#include "formats/convert/digest.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/refusal.h"
#include "formats/convert/sentence.h"
#include "formats/convert/verify_proto.h"
#include "planner/bounds/certify.h"
#include "planner/construct/strategy.h"

namespace reprise::formats {
namespace {

// Returns the peak of the program without a plan, under a free policy.
StatusOr<int64_t> BasePeak(const planner::StepGraph& graph,
                           const planner::Capabilities& capabilities) {
  ASSIGN_OR_RETURN(
      const planner::Evaluation base,
      planner::Evaluate(graph,
                        planner::BaseSchedule(graph, capabilities.free_policy),
                        capabilities));
  return base.peak_bytes;
}

void AddSchedule(const Task& task, const planner::Plan& plan, v1::Plan& to) {
  for (const planner::Entry& entry : plan.schedule) {
    to.add_schedule(planner::CodeOf(entry));
  }
  for (const planner::Decision decision : plan.decisions) {
    to.add_decisions(static_cast<v1::Decision>(decision));
  }
  to.mutable_saved()->Assign(plan.saved.begin(), plan.saved.end());
  to.mutable_recomputed_ops()->Assign(plan.recomputed_ops.begin(),
                                      plan.recomputed_ops.end());
  std::vector<planner::MemoryPoint> profile;
  const StatusOr<planner::Evaluation> evaluation = planner::Evaluate(
      task.graph, plan.schedule, task.request.capabilities, &profile);
  assert(evaluation.ok() && "the planner's own schedule is valid");
  for (const planner::MemoryPoint& point : profile) {
    to.mutable_predicted()->add_start_ns(point.start_ns);
    to.mutable_predicted()->add_bytes(point.bytes + task.reserve_bytes);
  }
}

void AddPasses(const planner::Plan& plan, v1::Plan& to) {
  const auto fraction = [&](int64_t ns) {
    return static_cast<double>(ns) /
           static_cast<double>(std::max<int64_t>(1, plan.base_time_ns));
  };
  for (const planner::PassLine& line : plan.passes) {
    v1::Pass& pass = *to.add_passes();
    pass.set_name(std::string(line.name));
    pass.set_runs(static_cast<uint32_t>(line.runs));
    pass.set_ticks(line.ticks);
    if (line.first_added_ns >= 0) {
      pass.set_first_overhead(fraction(line.first_added_ns));
    }
    pass.set_overhead_gain(fraction(line.plan_gain_ns));
    pass.set_bound_gain(fraction(line.bound_gain_ns));
  }
}

// The times of a step that has not run yet are guesses, and the first step of a
// job waits for its plan: one this close to the optimum will do.
constexpr std::string_view kFromShapes = "eager-shapes";
constexpr double kShapesGap = 0.05;

}  // namespace

StatusOr<Task> MakeTask(const v1::StepGraph& graph, std::string graph_id,
                        const std::string& budget,
                        const v1::Capabilities& capabilities,
                        int64_t extra_reserve, int64_t device_bytes,
                        int64_t device_free_bytes) {
  if (extra_reserve < 0) {
    return InvalidArgument(
        StrCat("reserve_bytes: must not be negative, got ", extra_reserve));
  }
  Task task;
  ASSIGN_OR_RETURN(task.graph, ToPlanner(graph));
  ASSIGN_OR_RETURN(task.request.capabilities, ToPlanner(capabilities));
  ASSIGN_OR_RETURN(const Budget parsed, ParseBudget(budget));

  // A fraction must mean the same bytes for every executor, so it refers to the
  // reference policy unless the job measured its own peak.
  const int64_t measured = graph.measured_peak_bytes();
  ASSIGN_OR_RETURN(const int64_t reference_peak, BasePeak(task.graph, {}));
  ASSIGN_OR_RETURN(const int64_t modelled_peak,
                   BasePeak(task.graph, task.request.capabilities));
  task.base_peak_bytes = measured > 0 ? measured : reference_peak;
  ASSIGN_OR_RETURN(
      task.budget_bytes,
      ResolveBudget(parsed,
                    {.static_bytes = graph.static_bytes() + extra_reserve,
                     .base_peak_bytes = task.base_peak_bytes + extra_reserve,
                     .device_bytes = device_bytes,
                     .device_free_bytes = device_free_bytes}));
  task.reserve_bytes =
      extra_reserve +
      (measured > 0 ? std::max<int64_t>(0, measured - modelled_peak) : 0);
  // At least 1: if the reserve exceeds the budget, the planner's own proof then
  // refuses it and names the op.
  task.request.budget_bytes =
      std::max<int64_t>(1, task.budget_bytes - task.reserve_bytes);
  if (graph.flavour() == kFromShapes) {
    task.request.target_gap = kShapesGap;
    task.waits = true;
  }
  task.graph_id = std::move(graph_id);
  task.structure = graph.structure();
  task.inferred = WhyInferred(graph);
  task.budget = budget;
  task.capabilities = capabilities;
  task.measured_step_ns = graph.measured_step_ns();
  return task;
}

v1::Plan ToProto(const Task& task, const planner::Plan& plan, double solve_ms) {
  v1::Plan to;
  to.set_graph_id(task.graph_id);
  to.set_inferred(task.inferred);
  to.set_structure(task.structure);
  to.set_budget(task.budget);
  to.set_budget_bytes(task.budget_bytes);
  to.set_feasible(plan.feasible);
  to.set_base_peak_bytes(task.base_peak_bytes);
  to.set_base_time_ns(plan.base_time_ns);
  to.set_bound(plan.bound);
  to.set_bound_scope(v1::BOUND_SCOPE_ORDER);
  to.set_solver(plan.solver);
  to.set_solve_ms(solve_ms);
  to.set_executor(task.capabilities.executor());
  to.set_free_policy(task.request.capabilities.free_policy ==
                             planner::FreePolicy::kProgram
                         ? v1::FREE_POLICY_PROGRAM
                         : v1::FREE_POLICY_EAGER);
  to.set_bound_proof(plan.bound_proof == planner::BoundProof::kChecked
                         ? v1::BOUND_PROOF_CHECKED
                     : plan.bound_proof == planner::BoundProof::kSolver
                         ? v1::BOUND_PROOF_SOLVER
                         : v1::BOUND_PROOF_NONE);
  if (plan.certificate.method != verify::Method::kNone) {
    ToProto(
        plan.certificate,
        planner::ExecutorOf(planner::WithExecution(task.request.capabilities)),
        task.reserve_bytes, *to.mutable_certificate());
  }
  const planner::Link& link = task.request.capabilities.link;
  if (link.host_bytes > 0) {
    v1::Link& of = *to.mutable_link();
    of.set_out_bytes_per_s(link.out_bytes_per_s);
    of.set_in_bytes_per_s(link.in_bytes_per_s);
    of.set_latency_ns(link.latency_ns);
    of.set_host_bytes(link.host_bytes);
    to.set_host_peak_bytes(plan.evaluation.host_peak_bytes);
  }
  to.set_replan(task.replan);
  to.set_interrupted(plan.interrupted);
  to.set_ticks(plan.ticks);
  AddPasses(plan, to);
  if (plan.feasible) {
    to.set_peak_bytes(plan.evaluation.peak_bytes + task.reserve_bytes);
    to.set_time_ns(plan.evaluation.time_ns);
    to.set_peak_op(static_cast<uint32_t>(plan.evaluation.peak_op));
    to.set_overhead(plan.overhead);
    to.set_proven_optimal(plan.proven_optimal && task.inferred.empty());
    AddSchedule(task, plan, to);
  } else {
    *to.mutable_infeasible() =
        ToProto(plan.infeasible, task.graph, task.reserve_bytes);
  }
  to.set_plan_id(PlanId(to, task.capabilities));
  const planner::Strategy strategy = task.request.strategy;
  const bool named = strategy != planner::Strategy::kAuto;
  to.set_sentence(named && Undecided(to)
                      ? StrategySentence(planner::NameOf(strategy), to)
                  : plan.feasible ? PlanSentence(to, task.measured_step_ns)
                                  : RefusalSentence(task, to));
  return to;
}

std::string PlanId(const v1::Plan& plan, const v1::Capabilities& capabilities) {
  Fnv1a64 digest;
  digest.Add(plan.graph_id()).Add(plan.budget_bytes());
  for (const int64_t entry : plan.schedule()) digest.Add(entry);
  // Field by field, because serialized protos are not guaranteed to be
  // canonical.
  digest.Add(capabilities.executor())
      .Add(int64_t{capabilities.max_runs()})
      .Add(int64_t{capabilities.recompute_in_backward_only()})
      .Add(int64_t{capabilities.seeded_ok()})
      .Add(int64_t{capabilities.collective_ok()})
      .Add(int64_t{capabilities.duplicate_outputs()})
      .Add(int64_t{plan.free_policy()})
      .Add(capabilities.ns_per_op());
  // Only added if set, so that the ids of older plans stay the same.
  if (capabilities.execution() > v1::EXECUTION_FREE) {
    digest.Add(int64_t{capabilities.execution()});
  }
  if (plan.has_link()) {
    digest.Add(plan.link().out_bytes_per_s())
        .Add(plan.link().in_bytes_per_s())
        .Add(plan.link().latency_ns())
        .Add(plan.link().host_bytes());
  }
  return HexId(digest.id());
}

StatusOr<planner::Schedule> ToSchedule(const v1::Plan& plan,
                                       const planner::StepGraph& graph) {
  planner::Schedule schedule;
  schedule.reserve(plan.schedule_size());
  for (int i = 0; i < plan.schedule_size(); ++i) {
    const int64_t code = plan.schedule(i);
    const bool exec = code >= 0;
    const int64_t count = exec ? graph.op_count() : graph.storage_count();
    const std::optional<planner::Entry> entry = planner::EntryOf(code);
    if (!entry || entry->id >= count) {
      return InvalidArgument(StrCat("schedule[", i, "]: there is no ",
                                    exec ? "op " : "storage ",
                                    entry  ? int64_t{entry->id}
                                    : exec ? code
                                           : -(code + 1),
                                    ", the graph has ", count));
    }
    schedule.push_back(*entry);
  }
  return schedule;
}

// The enums have the same order; the proto's starts with UNSPECIFIED.
static_assert(static_cast<int>(planner::Strategy::kAuto) + 1 ==
              v1::STRATEGY_AUTO);
static_assert(static_cast<int>(planner::Strategy::kMemory) + 1 ==
              v1::STRATEGY_MEMORY);
static_assert(static_cast<int>(planner::Strategy::kSpeed) + 1 ==
              v1::STRATEGY_SPEED);
static_assert(static_cast<int>(planner::Strategy::kCollection) + 1 ==
              v1::STRATEGY_COLLECTION);
static_assert(static_cast<int>(planner::Strategy::kPerBlock) + 1 ==
              v1::STRATEGY_PER_BLOCK);
static_assert(static_cast<int>(planner::Strategy::kSaveAll) + 1 ==
              v1::STRATEGY_SAVE_ALL);

namespace {

template <typename Message>
Status ApplyShared(const Message& from, planner::Request& to) {
  if (from.has_target_gap()) {
    if (!std::isfinite(from.target_gap()) || from.target_gap() < 0 ||
        from.target_gap() > 1000) {
      return InvalidArgument(
          "target_gap: must be a fraction from 0 to 1000, such as 0.001");
    }
    to.target_gap = from.target_gap();
  }
  if (from.seed() != 0) to.seed = from.seed();
  return OkStatus();
}

}  // namespace

Status ApplySearchOptions(const v1::PlanRequest& from, planner::Request& to) {
  if (!v1::Strategy_IsValid(from.strategy())) {
    return InvalidArgument(
        StrCat("strategy: unknown value ", static_cast<int>(from.strategy())));
  }
  if (from.strategy() != v1::STRATEGY_UNSPECIFIED) {
    to.strategy =
        static_cast<planner::Strategy>(from.strategy() - v1::STRATEGY_AUTO);
  }
  return ApplyShared(from, to);
}

v1::Strategy ToProto(planner::Strategy strategy) {
  return static_cast<v1::Strategy>(static_cast<int>(strategy) +
                                   v1::STRATEGY_AUTO);
}

Status ApplySearchOptions(const v1::SweepRequest& from, planner::Request& to) {
  return ApplyShared(from, to);
}

}  // namespace reprise::formats
