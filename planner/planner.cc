// SPDX-License-Identifier: Apache-2.0
#include "planner/planner.h"

#include "planner/construct/strategy.h"
#include "planner/host_plan.h"
#include "planner/model/archive.h"
#include "planner/model/effort.h"
#include "planner/model/flags.h"
#include "planner/model/problem.h"
#include "planner/once/search_once.h"
#include "planner/reduce.h"
#include "planner/search/solve.h"

namespace reprise::planner {
namespace {

// Default effort for a bound: a tenth of a second, and at least two windows
// even for the largest step.
constexpr int64_t kBoundTicks = 20'000'000;
constexpr int64_t kBoundTicksPerOp = 400;

// Returns the plan of a named strategy, with the bound of the minimum cuts.
Solution SolveNamed(const Problem& problem, const Request& request,
                    Archive& archive, Effort& effort) {
  Generator generator(problem);
  for (const Archive::Point& candidate :
       StrategyCandidates(problem, request.strategy, generator)) {
    if (problem.capabilities.execution == Execution::kFree) {
      archive.Add(candidate);
    } else {
      AddSaved(problem, SavedBy(problem, candidate.execs), candidate.solver,
               archive);
    }
  }
  effort.Spend(generator.ticks());
  Certificate certificate(problem, request.budget_bytes, effort);
  if (problem.base.peak_bytes > request.budget_bytes &&
      !certificate.impossible()) {
    CertifyBase(problem, request.budget_bytes, effort.most_ticks() / 8,
                certificate, effort);
  }
  return {.added_ns = certificate.added_ns(),
          .source = certificate.source(),
          .impossible = certificate.impossible(),
          .infeasible = certificate.infeasible()};
}

// Solves the reduced graph; the results are evaluated on the original.
Solution SolveReduced(const Problem& problem, const Reduction& reduction,
                      const Request& request, Archive& archive,
                      Effort& effort) {
  const Problem smaller = MakeProblem(reduction.graph(), problem.capabilities);
  Known found(smaller);
  Solution solution = Solve(smaller, request, found, effort);
  solution.infeasible = reduction.Expand(solution.infeasible);
  // A tree belongs to the program of the graph that was searched.
  if (!solution.source.nested) solution.source.tree.clear();
  solution.source.windows = reduction.ExpandWindows(solution.source.windows);
  for (const Archive::Point* point :
       {found.archive.Best(request.budget_bytes), found.archive.Smallest()}) {
    if (point == nullptr) continue;
    const std::vector<OpId> execs = reduction.Expand(point->execs);
    const StatusOr<Evaluation> evaluation = EvaluateExecs(problem, execs);
    if (!evaluation.ok()) continue;
    archive.Add(*evaluation, execs, point->solver);
  }
  // Named plans depend on names and modules, so use those of the original.
  Generator named(problem);
  AddStrategies(problem, named, archive);
  return solution;
}

Solution SolveAuto(const Problem& problem, const Request& request, Known& known,
                   Effort& effort) {
  if (MayReduce(*problem.graph, request) &&
      problem.base.peak_bytes > request.budget_bytes) {
    const Reduction reduction(problem);
    if (reduction.IsWorthIt()) {
      return SolveReduced(problem, reduction, request, known.archive, effort);
    }
  }
  return Solve(problem, request, known, effort);
}

// Determines what supports the bound or the refusal: the verifier, if it
// accepts a certificate of all of it.
void Certify(const Problem& problem, const Request& request,
             const Solution& solution, Plan& plan) {
  if (plan.feasible && plan.bound_ns == 0) {
    // Only a bound of zero is claimed; a step without added time is optimal.
    const bool adds = plan.evaluation.time_ns > problem.base.time_ns;
    plan.bound_proof = adds ? BoundProof::kNone : BoundProof::kChecked;
    plan.proven_optimal = plan.is_optimal && !adds;
    return;
  }
  const bool refused = !plan.feasible && !plan.undecided;
  if (!refused && plan.bound_ns == 0) return;
  const StatusOr<verify::Facts> facts =
      verify::ReadFacts(*problem.graph, ExecutorOf(problem.capabilities));
  plan.bound_proof = BoundProof::kSolver;
  if (!facts.ok()) return;
  const CertifyLimits limits{.most_iterations = request.certify_iterations,
                             .should_stop = request.should_stop};
  if (refused) {
    plan.certificate = CertifyRefusal(*facts, request.budget_bytes,
                                      solution.infeasible, limits);
    if (plan.certificate.method != verify::Method::kNone) {
      plan.bound_proof = BoundProof::kChecked;
    }
    return;
  }
  plan.certificate = CertifyBound(problem, *facts, request.budget_bytes,
                                  solution.source, plan.bound_ns, limits);
  if (plan.certificate.added_ns < plan.bound_ns) return;
  plan.bound_proof = BoundProof::kChecked;
  plan.proven_optimal = plan.is_optimal;
}

}  // namespace

StatusOr<Plan> MakePlan(const StepGraph& graph, const Request& request) {
  RETURN_IF_ERROR(Validate(graph));
  RETURN_IF_ERROR(CheckRequest(request));
  if (request.capabilities.link.host_bytes > 0) {
    return PlanWithHost(graph, request);
  }
  const Problem problem = MakeProblem(graph, request.capabilities);
  std::function<bool()> stop_search = request.should_stop;
  if (request.search_is_over) {
    stop_search = [&request] {
      return request.search_is_over() ||
             (request.should_stop && request.should_stop());
    };
  }
  Effort effort(TicksOf(problem, request), stop_search);
  Known known(problem);
  if (request.strategy != Strategy::kAuto) known.archive = {};
  const Solution solution =
      request.strategy == Strategy::kAuto
          ? SolveAuto(problem, request, known, effort)
          : SolveNamed(problem, request, known.archive, effort);
  ASSIGN_OR_RETURN(Plan plan, PlanFrom(problem, request.budget_bytes, solution,
                                       known.archive));
  Certify(problem, request, solution, plan);
  plan.interrupted = effort.interrupted();
  plan.ticks = effort.ticks();
  return plan;
}

StatusOr<Bound> LowerBound(const StepGraph& graph, const Request& request) {
  RETURN_IF_ERROR(Validate(graph));
  RETURN_IF_ERROR(CheckRequest(request));
  RETURN_IF_ERROR(CheckHasNoHost(request));
  const Problem problem = MakeProblem(graph, request.capabilities);
  Bound bound;
  if (problem.base.peak_bytes <= request.budget_bytes) return bound;
  Effort effort(request.max_ticks > 0
                    ? request.max_ticks
                    : kBoundTicks + kBoundTicksPerOp * problem.op_count,
                request.should_stop);
  Certificate certificate(problem, request.budget_bytes, effort);
  if (!certificate.impossible()) {
    CertifyBase(problem, request.budget_bytes, effort.most_ticks(), certificate,
                effort);
  }
  bound.impossible = certificate.impossible();
  bound.infeasible = certificate.infeasible();
  if (bound.impossible) {
    // The same share as MakePlan gives to a refusal, so that both name the same
    // budget.
    bound.infeasible = ProveMore(problem, bound.infeasible,
                                 TicksOf(problem, request) / 32, effort);
  } else {
    bound.overhead = Overhead(certificate.added_ns(), problem.base.time_ns);
  }
  return bound;
}

}  // namespace reprise::planner
