// SPDX-License-Identifier: Apache-2.0
//
// Measures what each pass of the search contributes: every cell is planned with
// all passes, and again without each pass that ran.
//
//   planner_ablation [--ticks N] [--gap PERCENT] [--budgets F,F,...]
//                    [--seed S] [--executor free|once]
//                    [--only PASS,...] GRAPH...
//
// GRAPH is a file of reprise.graph/1 or a generated step, KIND:OPS. Effort is
// counted in ticks, never in seconds: the same call prints the same table on
// any machine under any load. Without --ticks a search has its default effort.
// A pass that does not run in a cell is not left out there, as that would
// change nothing. Each search prints its line as it ends, so that a measurement
// that is stopped early has told what it knows; the sums follow.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "bench/planner/cells.h"
#include "planner/planner.h"
#include "planner/search/solve.h"

namespace reprise::planner {
namespace {

struct Options {
  std::vector<std::string> only;
  CellFlags cells = {.budgets = {0.8, 0.6, 0.4, 0.3}};
};

// Effect of leaving a pass out, over all cells in which it ran.
struct Total {
  int cells = 0;
  int plans_lost = 0, plans_won = 0;  // found with it only; without it only
  int worse = 0, better = 0;          // plans without the pass
  int less_proven = 0, more_proven = 0;
  int proofs_lost = 0, proofs_won = 0;  // gap reached with / without it
  double worse_pp = 0, better_pp = 0, less_proven_pp = 0, more_proven_pp = 0;
  int64_t ticks_with = 0, ticks_without = 0;  // if both reach the gap
};

// Smaller differences are rounding errors: one in a million of the step, in %.
constexpr double kEqual = 1e-4;

Plan PlanOf(const Options& options, const StepGraph& graph, double fraction,
            const std::vector<std::string>& without) {
  Request request = options.cells.RequestOf();
  request.certify_iterations = 0;
  request.without = without;
  request.budget_bytes = BudgetAt(graph, request.capabilities, fraction);
  const auto plan = MakePlan(graph, request);
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", plan.status().message().c_str());
    std::exit(2);
  }
  return *plan;
}

double GapOf(const Plan& plan) { return 100 * (plan.overhead - plan.bound); }

std::string TextOf(const Plan& plan) {
  char text[96];
  if (!plan.feasible) return plan.undecided ? "none" : "impossible";
  std::snprintf(text, sizeof text, "%.4f (bound %.4f)", 100 * plan.overhead,
                100 * plan.bound);
  return text;
}

// Adds a cell to the totals.
void Compare(const Options& options, const Plan& with, const Plan& without,
             Total& total) {
  ++total.cells;
  const bool ended_with =
      !with.undecided && (!with.feasible || GapOf(with) <= options.cells.gap);
  const bool ended_without =
      !without.undecided &&
      (!without.feasible || GapOf(without) <= options.cells.gap);
  total.proofs_lost += ended_with && !ended_without;
  total.proofs_won += ended_without && !ended_with;
  if (ended_with && ended_without) {
    total.ticks_with += with.ticks;
    total.ticks_without += without.ticks;
  }
  total.plans_lost += with.feasible && !without.feasible;
  total.plans_won += without.feasible && !with.feasible;
  if (!with.feasible || !without.feasible) return;
  // Plans within the gap count as equal: a search stops there.
  const double plans = ended_with && ended_without
                           ? 0
                           : 100 * (without.overhead - with.overhead);
  const double bounds = 100 * (with.bound - without.bound);
  if (plans > kEqual) ++total.worse, total.worse_pp += plans;
  if (plans < -kEqual) ++total.better, total.better_pp -= plans;
  if (!(ended_with && ended_without) && bounds > kEqual) {
    ++total.less_proven, total.less_proven_pp += bounds;
  }
  if (!(ended_with && ended_without) && bounds < -kEqual) {
    ++total.more_proven, total.more_proven_pp -= bounds;
  }
}

// Prints the answer of a cell, with all passes or without one.
void PrintAnswer(const std::string& graph, double fraction,
                 const std::string& left_out, const Plan& plan) {
  std::printf("| %s | %.2fx | %s | %s | %ld |\n", graph.c_str(), fraction,
              left_out.c_str(), TextOf(plan).c_str(),
              static_cast<long>(plan.ticks / 1'000'000));
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--only" && more) {
      options.only = Split(argv[++i]);
    } else {
      options.cells.Read(argc, argv, i);
    }
  }
  std::printf(
      "| graph | budget | left out | answer | Mticks |\n"
      "| --- | --- | --- | --- | --- |\n");
  std::map<std::string, Total> totals;
  for (const std::string& name : options.cells.graphs) {
    const auto graph = ReadGraph(name);
    if (!graph.has_value()) {
      std::fprintf(stderr, "%s: no such graph\n", name.c_str());
      return 2;
    }
    for (const double fraction : options.cells.budgets) {
      const Plan with = PlanOf(options, *graph, fraction, {});
      PrintAnswer(ShortName(name), fraction, "-", with);
      const std::vector<PassRule> rules = PassRules();
      for (const PassLine& line : with.passes) {
        const std::string pass(line.name);
        const bool is_rule = std::any_of(
            rules.begin(), rules.end(),
            [&](const PassRule& rule) { return rule.name == pass; });
        const bool chosen = options.only.empty() ||
                            std::find(options.only.begin(), options.only.end(),
                                      pass) != options.only.end();
        if (!is_rule || !chosen) continue;
        const Plan without = PlanOf(options, *graph, fraction, {pass});
        PrintAnswer(ShortName(name), fraction, pass, without);
        Compare(options, with, without, totals[pass]);
      }
    }
  }
  std::printf(
      "\n| left out | cells | plans lost | won | plans worse | by pp | better "
      "| by pp | bounds lower | by pp | higher | by pp | gap no longer reached "
      "| "
      "now reached | Mticks to the gap | without |\n| --- | --- | --- | --- | "
      "--- "
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [name, t] : totals) {
    std::printf(
        "| %s | %d | %d | %d | %d | %.4f | %d | %.4f | %d | %.4f | %d | %.4f | "
        "%d | %d | %ld | %ld |\n",
        name.c_str(), t.cells, t.plans_lost, t.plans_won, t.worse, t.worse_pp,
        t.better, t.better_pp, t.less_proven, t.less_proven_pp, t.more_proven,
        t.more_proven_pp, t.proofs_lost, t.proofs_won,
        static_cast<long>(t.ticks_with / 1'000'000),
        static_cast<long>(t.ticks_without / 1'000'000));
  }
  return 0;
}

}  // namespace
}  // namespace reprise::planner

int main(int argc, char** argv) { return reprise::planner::Main(argc, argv); }
