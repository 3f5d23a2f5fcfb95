// SPDX-License-Identifier: Apache-2.0
//
// Shows how bound and plan scale with the step: generated steps of 1,000 to
// 100,000 ops at a part of their dynamic memory, on one core. Prints wall time,
// processor time (independent of the machine's load), the process's peak memory
// so far, and the exponent of time against ops, fitted by least squares.
//
//   planner_scale [KIND] [PERCENT] [OPS...]
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "bench/generate/generate.h"
#include "planner/model/problem.h"
#include "planner/planner.h"

namespace reprise::planner {
namespace {

// Measures wall and processor time, in seconds since construction.
class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  double ProcessorSeconds() const {
    return static_cast<double>(std::clock() - processor_start_) /
           CLOCKS_PER_SEC;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  std::clock_t processor_start_ = std::clock();
};

double PeakMebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// Returns the slope of log seconds over log ops.
double Exponent(const std::vector<double>& ops,
                const std::vector<double>& seconds) {
  double mean_x = 0, mean_y = 0, over = 0, under = 0;
  const auto count = static_cast<double>(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    mean_x += std::log(ops[i]) / count;
    mean_y += std::log(std::max(seconds[i], 1e-6)) / count;
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    const double x = std::log(ops[i]) - mean_x;
    over += x * (std::log(std::max(seconds[i], 1e-6)) - mean_y);
    under += x * x;
  }
  return over / under;
}

int Main(int argc, char** argv) {
  const StatusOr<GraphKind> kind =
      ParseGraphKind(argc > 1 ? argv[1] : "transformer");
  if (!kind.ok()) {
    std::fprintf(stderr, "%s\n", kind.status().message().c_str());
    return 2;
  }
  const int percent = argc > 2 ? std::atoi(argv[2]) : 50;
  std::vector<int> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {1000, 3000, 10'000, 30'000, 100'000};

  std::printf(
      "    ops   overhead      bound     gap pp   bound s (cpu)     plan s "
      "(cpu)    MiB  by\n");
  std::vector<double> ops, bound_seconds, plan_seconds;
  for (const int size : sizes) {
    const auto graph = Generate({.kind = *kind, .ops = size});
    if (!graph.ok()) {
      std::fprintf(stderr, "%s\n", graph.status().message().c_str());
      return 2;
    }
    Request request{.capabilities = {.seeded_ok = true},
                    .target_gap = size >= 100'000 ? 0.02 : 0.01};
    {
      const Problem problem = MakeProblem(*graph, request.capabilities);
      const int64_t dynamic = problem.base.peak_bytes - problem.static_bytes;
      request.budget_bytes = problem.static_bytes + dynamic / 100 * percent;
    }
    const Stopwatch bound_watch;
    const auto bound = LowerBound(*graph, request);
    const double bound_s = bound_watch.Seconds();
    const double bound_cpu_s = bound_watch.ProcessorSeconds();
    const Stopwatch plan_watch;
    const auto plan = MakePlan(*graph, request);
    const double plan_s = plan_watch.Seconds();
    const double plan_cpu_s = plan_watch.ProcessorSeconds();
    if (!bound.ok() || !plan.ok()) return 2;
    if (!plan->feasible) {
      std::printf("%7d   no plan within the budget\n", graph->op_count());
      continue;
    }
    std::printf(
        "%7d   %7.4f %%  %7.4f %%   %7.4f   %7.3f (%5.3f)  %7.3f (%5.3f) %6.0f "
        " %s\n",
        graph->op_count(), 100 * plan->overhead,
        100 * std::max(bound->overhead, plan->bound),
        100 * (plan->overhead - std::max(bound->overhead, plan->bound)),
        bound_s, bound_cpu_s, plan_s, plan_cpu_s, PeakMebibytes(),
        plan->solver.c_str());
    ops.push_back(graph->op_count());
    bound_seconds.push_back(bound_cpu_s);
    plan_seconds.push_back(plan_cpu_s);
  }
  if (ops.size() > 1) {
    std::printf(
        "processor time grows with ops to the power %.2f (bound), %.2f "
        "(plan)\n",
        Exponent(ops, bound_seconds), Exponent(ops, plan_seconds));
  }
  return 0;
}

}  // namespace
}  // namespace reprise::planner

int main(int argc, char** argv) { return reprise::planner::Main(argc, argv); }
