// SPDX-License-Identifier: Apache-2.0
//
// Measures what each pass of the search contributes: every cell is planned with
// all passes, and again without each pass that ran.
//
//   planner_ablation [--ticks N] [--gap PERCENT] [--budgets F,F,...]
//                    [--seed S] [--executor free|once|flat|nested]
//                    [--only PASS,...] [--cells] GRAPH...
//
// GRAPH is a file of reprise.graph/1 or a generated step, KIND:OPS. Effort is
// counted in ticks, never in seconds: the same call prints the same table on
// any machine under any load. Without --ticks a search has its default effort.
// A pass that does not run in a cell is not left out there, as that would
// change nothing. --cells prints every cell in which leaving a pass out changes
// a plan or a bound.
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
  bool print_cells = false;
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

// Adds a cell to the totals. Returns whether a plan or a bound differs.
bool Compare(const Options& options, const Plan& with, const Plan& without,
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
  if (!with.feasible || !without.feasible) {
    return with.feasible != without.feasible ||
           with.undecided != without.undecided;
  }
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
  return ended_with != ended_without || std::abs(plans) > kEqual;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--only" && more) {
      options.only = Split(argv[++i]);
    } else if (flag == "--cells") {
      options.print_cells = true;
    } else {
      options.cells.Read(argc, argv, i);
    }
  }
  std::printf(
      "| graph | budget | all passes | Mticks |\n| --- | --- | --- | --- |\n");
  std::map<std::string, Total> totals;
  std::string changed;
  for (const std::string& name : options.cells.graphs) {
    const auto graph = ReadGraph(name);
    if (!graph.has_value()) {
      std::fprintf(stderr, "%s: no such graph\n", name.c_str());
      return 2;
    }
    for (const double fraction : options.cells.budgets) {
      const Plan with = PlanOf(options, *graph, fraction, {});
      char cell[96];
      std::snprintf(cell, sizeof cell, "| %s | %.2fx |",
                    ShortName(name).c_str(), fraction);
      std::printf("%s %s | %ld |\n", cell, TextOf(with).c_str(),
                  static_cast<long>(with.ticks / 1'000'000));
      std::fflush(stdout);
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
        if (Compare(options, with, without, totals[pass])) {
          changed += std::string(cell) + " " + pass + " | " + TextOf(with) +
                     " | " + TextOf(without) + " |\n";
        }
      }
    }
  }
  std::printf(
      "\n| left out | cells | plans lost | won | plans worse | by pp | better "
      "| "
      "by pp | bounds lower | by pp | higher | by pp | gap no longer reached | "
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
  if (options.print_cells) {
    std::printf(
        "\n| graph | budget | left out | with it | without |\n"
        "| --- | --- | --- | --- | --- |\n%s",
        changed.c_str());
  }
  return 0;
}

}  // namespace
}  // namespace reprise::planner

int main(int argc, char** argv) { return reprise::planner::Main(argc, argv); }
