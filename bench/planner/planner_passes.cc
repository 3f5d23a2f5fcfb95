// SPDX-License-Identifier: Apache-2.0
//
// Prints what each pass of the search costs and gains, over step graphs and
// budgets.
//
//   planner_passes [--seconds S | --ticks N] [--gap PERCENT] [--seed S] [--trace]
//                  [--executor free|once] [--without PASS,...]
//                  [--budgets F,F,...] GRAPH...
//   planner_passes --list
//
// GRAPH is a file of reprise.graph/1 or a generated step, KIND:OPS. Seconds are
// processor time; without them the search has its default ticks, and a repeated
// run prints the same table.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "bench/planner/cells.h"
#include "planner/planner.h"
#include "planner/search/solve.h"

namespace reprise::planner {
namespace {

struct Options {
  double seconds = 0;
  bool trace = false;
  CellFlags cells = {.budgets = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1}};
};

double Seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Total {
  int cells = 0, runs = 0, firsts = 0, plan_wins = 0, bound_wins = 0;
  int64_t ticks = 0;
  double plan_gain = 0, bound_gain = 0;
};

void Cell(const Options& options, const std::string& name,
          const StepGraph& graph, double fraction,
          std::map<std::string, Total>& totals) {
  Request request = options.cells.RequestOf();
  request.budget_bytes = BudgetAt(graph, request.capabilities, fraction);
  const double begin = Seconds();
  if (options.seconds > 0) {
    request.until_stopped = true;
    request.should_stop = [&] { return Seconds() - begin > options.seconds; };
  }
  int64_t base_time_ns = 0;
  for (const Op& op : graph.ops) base_time_ns += op.time_ns;
  const auto percent = [&](int64_t ns) {
    return 100 * static_cast<double>(ns) / static_cast<double>(base_time_ns);
  };
  if (options.trace) {
    request.on_progress = [&](const Progress& progress) {
      std::printf("    %7.3f s  %-18s  plan %.4f  bound %.4f\n",
                  Seconds() - begin, std::string(progress.pass).c_str(),
                  100 * progress.overhead, 100 * progress.bound);
      std::fflush(stdout);
    };
  }
  const auto plan = MakePlan(graph, request);
  if (!plan.ok()) {
    std::printf("%s: %s\n", name.c_str(), plan.status().message().c_str());
    std::exit(2);
  }
  std::printf("| %s | %.2fx | ", ShortName(name).c_str(), fraction);
  if (plan->feasible) {
    std::printf("%.4f | %.4f | %.4f |", 100 * plan->overhead, 100 * plan->bound,
                100 * (plan->overhead - plan->bound));
  } else {
    std::printf("%s | %.4f | |", plan->undecided ? "undecided" : "impossible",
                100 * plan->bound);
  }
  std::printf(" %ld | %.2f | %s |\n", plan->ticks / 1'000'000,
              Seconds() - begin, plan->solver.c_str());
  std::fflush(stdout);
  for (const PassLine& line : plan->passes) {
    Total& total = totals[std::string(line.name)];
    ++total.cells;
    total.runs += line.runs;
    total.ticks += line.ticks;
    total.firsts += (line.first_added_ns >= 0);
    total.plan_wins += line.plan_gain_ns > 0;
    total.bound_wins += line.bound_gain_ns > 0;
    total.plan_gain += percent(line.plan_gain_ns);
    total.bound_gain += percent(line.bound_gain_ns);
  }
}

void List() {
  std::printf(
      "| stage | pass | share of the ticks | when |\n"
      "| --- | --- | --- | --- |\n");
  for (const PassRule& rule : PassRules()) {
    char share[16] = "what it takes";
    if (rule.share_64 > 0) {
      std::snprintf(share, sizeof share, "%.1f %%", rule.share_64 * 100 / 64.0);
    }
    std::printf("| %s | %s | %s | %s |\n", std::string(rule.stage).c_str(),
                std::string(rule.name).c_str(), share,
                std::string(rule.when).c_str());
  }
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--seconds" && more) {
      options.seconds = std::atof(argv[++i]);
    } else if (flag == "--list") {
      List();
      return 0;
    } else if (flag == "--trace") {
      options.trace = true;
    } else {
      options.cells.Read(argc, argv, i);
    }
  }
  std::map<std::string, Total> totals;
  std::printf(
      "| graph | budget | overhead | bound | gap | Mticks | cpu s | by |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const std::string& name : options.cells.graphs) {
    const auto graph = ReadGraph(name);
    if (!graph.has_value()) {
      std::fprintf(stderr, "%s: no such graph\n", name.c_str());
      return 2;
    }
    for (const double fraction : options.cells.budgets) {
      Cell(options, name, *graph, fraction, totals);
    }
  }
  std::printf(
      "\n| pass | cells | runs | Mticks | first plans | plans improved | by pp "
      "| bounds improved | by pp |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const auto& [name, total] : totals) {
    std::printf("| %s | %d | %d | %ld | %d | %d | %.4f | %d | %.4f |\n",
                name.c_str(), total.cells, total.runs, total.ticks / 1'000'000,
                total.firsts, total.plan_wins, total.plan_gain,
                total.bound_wins, total.bound_gain);
  }
  return 0;
}

}  // namespace
}  // namespace reprise::planner

int main(int argc, char** argv) { return reprise::planner::Main(argc, argv); }
