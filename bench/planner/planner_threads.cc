// SPDX-License-Identifier: Apache-2.0
//
// Measures what threads gain: wall time until a plan is proven optimal.
//
//   planner_threads [--threads N,...] [--repeat N] [--limit MS] [--seeds N,...]
//                   [--budgets F,F,...] [--trace] [--effort MS] GRAPH...
//
// GRAPH is a file of reprise.graph/1 or a generated step, KIND:OPS. The runs of
// a cell are interleaved, one per number of threads at a time, so that other
// load on the machine affects all of them; the shortest time counts. A run that
// reaches the limit without a checked proof does not count, and a cell without
// a proof prints a dash.
//
// --effort MS compares plans of the same effort instead: that many milliseconds
// of processor time per thread. A cell is worse if more threads found a plan
// that is slower than that of the first number of threads, by more than the
// target gap. Exits with 1 if a cell is worse.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/planner/cells.h"
#include "formats/solve/solve_plan.h"
#include "planner/planner.h"

namespace reprise::planner {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<double> threads = {1, 2};
  std::vector<double> seeds = {1, 2, 3};
  std::vector<double> budgets = {0.4};
  int repeat = 7;
  int limit_ms = 8000;
  bool trace = false;
  int effort_ms = 0;
  std::vector<std::string> graphs;
};

struct Runs {
  double least_ms = std::numeric_limits<double>::infinity();
  int proven = 0;
};

void Run(const StepGraph& graph, const Options& options, double fraction,
         double seed, double threads, Runs& runs) {
  Request request{.target_gap = 0, .seed = static_cast<uint64_t>(seed)};
  request.budget_bytes = BudgetAt(graph, request.capabilities, fraction);
  const auto begin = Clock::now();
  const auto end = begin + std::chrono::milliseconds(options.limit_ms);
  request.until_stopped = true;
  request.should_stop = [end] { return Clock::now() >= end; };
  if (options.trace) {
    request.on_progress = [&](const Progress& progress) {
      const std::chrono::duration<double, std::milli> at = Clock::now() - begin;
      std::printf("  %5.0f ms  %-16s plan %.4f  bound %.4f\n", at.count(),
                  std::string(progress.pass).c_str(), 100 * progress.overhead,
                  100 * progress.bound);
    };
  }
  const auto plan = formats::SolvePlan(graph, request,
                                       {.threads = static_cast<int>(threads)});
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  if (!plan.ok() || !plan->proven_optimal) return;
  ++runs.proven;
  runs.least_ms = std::min(runs.least_ms, took.count());
}

// Stops once the process has used the effort of all its threads.
std::optional<Plan> PlanByEffort(const StepGraph& graph, const Options& options,
                                 double fraction, double seed, double threads) {
  Request request{.seed = static_cast<uint64_t>(seed)};
  request.budget_bytes = BudgetAt(graph, request.capabilities, fraction);
  const std::clock_t end =
      std::clock() + static_cast<std::clock_t>(options.effort_ms * threads *
                                               (CLOCKS_PER_SEC / 1000));
  request.until_stopped = true;
  request.should_stop = [end] { return std::clock() >= end; };
  auto plan = formats::SolvePlan(graph, request,
                                 {.threads = static_cast<int>(threads)});
  if (!plan.ok()) return std::nullopt;
  return *std::move(plan);
}

// Returns false if more threads found less.
bool CompareByEffort(const StepGraph& graph, const std::string& name,
                     const Options& options, double fraction, double seed) {
  std::printf("| %s | %.2fx | %.0f |", ShortName(name).c_str(), fraction, seed);
  std::optional<Plan> fewest;
  bool good = true;
  for (const double threads : options.threads) {
    const auto plan = PlanByEffort(graph, options, fraction, seed, threads);
    if (!plan) return false;
    if (plan->feasible) {
      std::printf(" %.4f (bound %.4f) |", 100 * plan->overhead,
                  100 * plan->bound);
    } else {
      std::printf(" %s |", plan->undecided ? "none" : "impossible");
    }
    if (!fewest) {
      fewest = plan;
    } else if (fewest->feasible) {
      good = good && plan->feasible &&
             plan->overhead <= fewest->overhead + Request{}.target_gap;
    } else if (!fewest->undecided) {
      good = good && !plan->feasible && !plan->undecided;
    }
  }
  std::printf(" %s |\n", good ? "no" : "WORSE");
  std::fflush(stdout);
  return good;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--threads" && more) {
      options.threads = Numbers(argv[++i]);
    } else if (flag == "--seeds" && more) {
      options.seeds = Numbers(argv[++i]);
    } else if (flag == "--budgets" && more) {
      options.budgets = Numbers(argv[++i]);
    } else if (flag == "--repeat" && more) {
      options.repeat = std::atoi(argv[++i]);
    } else if (flag == "--limit" && more) {
      options.limit_ms = std::atoi(argv[++i]);
    } else if (flag == "--effort" && more) {
      options.effort_ms = std::atoi(argv[++i]);
    } else if (flag == "--trace") {
      options.trace = true;
    } else {
      options.graphs.push_back(flag);
    }
  }
  std::printf("| graph | budget | seed |");
  for (const double threads : options.threads) {
    if (options.effort_ms > 0) {
      std::printf(" on %.0f |", threads);
    } else {
      std::printf(" ms on %.0f | proven |", threads);
    }
  }
  std::printf(options.effort_ms > 0 ? " worse |\n" : " times sooner |\n");
  int worse = 0;
  for (const std::string& name : options.graphs) {
    const auto graph = ReadGraph(name);
    if (!graph.has_value()) {
      std::fprintf(stderr, "%s: no such graph\n", name.c_str());
      return 2;
    }
    for (const double fraction : options.budgets) {
      for (const double seed : options.seeds) {
        if (options.effort_ms > 0) {
          worse += !CompareByEffort(*graph, name, options, fraction, seed);
          continue;
        }
        std::map<double, Runs> runs;
        for (int repeat = 0; repeat < options.repeat; ++repeat) {
          for (const double threads : options.threads) {
            Run(*graph, options, fraction, seed, threads, runs[threads]);
          }
        }
        std::printf("| %s | %.2fx | %.0f |", ShortName(name).c_str(), fraction,
                    seed);
        for (const double threads : options.threads) {
          const Runs& of = runs[threads];
          if (of.proven == 0) {
            std::printf(" - |");
          } else {
            std::printf(" %.0f |", of.least_ms);
          }
          std::printf(" %d of %d |", of.proven, options.repeat);
        }
        std::printf(" %.2f |\n", runs[options.threads.front()].least_ms /
                                     runs[options.threads.back()].least_ms);
        std::fflush(stdout);
      }
    }
  }
  if (options.effort_ms > 0) std::printf("%d cells worse\n", worse);
  return worse == 0 ? 0 : 1;
}

}  // namespace
}  // namespace reprise::planner

int main(int argc, char** argv) { return reprise::planner::Main(argc, argv); }
