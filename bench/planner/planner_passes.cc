// SPDX-License-Identifier: Apache-2.0
//
// The portfolio explained: what each pass of the search costs and gains, over
// step graphs and budgets.
//
//   planner_passes [--seconds S] [--gap PERCENT] [--trace] [--budgets F,F,...]
//                  GRAPH...
//
// GRAPH is a file of reprise.graph/1 or a made-up step as KIND:OPS. Seconds are
// of the processor; without them the search has its default ticks and a
// repeated run prints the same table.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/generate/generate.h"
#include "planner/model/problem.h"
#include "planner/planner.h"
#include "tests/planner/graph_json.h"

namespace reprise::planner {
namespace {

struct Options {
  double seconds = 0;
  double gap = 0.1;
  int64_t ticks = 0;
  int seed = 1;
  bool trace = false;
  std::vector<double> budgets = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1};
  std::vector<std::string> graphs;
};

double Seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Total {
  int cells = 0, runs = 0, firsts = 0, plan_wins = 0, bound_wins = 0;
  int64_t ticks = 0;
  double plan_gain = 0, bound_gain = 0;
};

std::optional<StepGraph> Read(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return ReadGraphFile(name);
  const auto kind = ParseGraphKind(name.substr(0, colon));
  if (!kind.ok()) return std::nullopt;
  auto graph = Generate(
      {.kind = *kind, .ops = std::atoi(name.substr(colon + 1).c_str())});
  if (!graph.ok()) return std::nullopt;
  return std::move(*graph);
}

void Cell(const Options& options, const std::string& name,
          const StepGraph& graph, double fraction,
          std::map<std::string, Total>& totals) {
  Request request{.capabilities = {.seeded_ok = true},
                  .target_gap = options.gap / 100,
                  .max_ticks = options.ticks,
                  .seed = static_cast<uint64_t>(options.seed)};
  const Problem problem = MakeProblem(graph, request.capabilities);
  const int64_t dynamic = problem.base.peak_bytes - problem.static_bytes;
  request.budget_bytes =
      problem.static_bytes +
      static_cast<int64_t>(fraction * static_cast<double>(dynamic));
  const double begin = Seconds();
  if (options.seconds > 0) {
    request.until_stopped = true;
    request.should_stop = [&] { return Seconds() - begin > options.seconds; };
  }
  const auto percent = [&](int64_t ns) {
    return 100 * static_cast<double>(ns) /
           static_cast<double>(problem.base.time_ns);
  };
  if (options.trace) {
    request.on_progress = [&](const Progress& progress) {
      std::printf("    %7.3f s  %-18s  plan %.4f  bound %.4f\n",
                  Seconds() - begin, std::string(progress.pass).c_str(),
                  100 * progress.overhead, 100 * progress.bound);
    };
  }
  const auto plan = MakePlan(graph, request);
  if (!plan.ok()) {
    std::printf("%s: %s\n", name.c_str(), plan.status().message().c_str());
    std::exit(2);
  }
  const size_t slash = name.rfind('/');
  std::printf("| %s | %.2fx | ",
              name.substr(slash == std::string::npos ? 0 : slash + 1).c_str(),
              fraction);
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

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--seconds" && more) {
      options.seconds = std::atof(argv[++i]);
    } else if (flag == "--gap" && more) {
      options.gap = std::atof(argv[++i]);
    } else if (flag == "--ticks" && more) {
      options.ticks = std::atoll(argv[++i]);
    } else if (flag == "--seed" && more) {
      options.seed = std::atoi(argv[++i]);
    } else if (flag == "--trace") {
      options.trace = true;
    } else if (flag == "--budgets" && more) {
      options.budgets.clear();
      for (char* part = std::strtok(argv[++i], ","); part != nullptr;
           part = std::strtok(nullptr, ",")) {
        options.budgets.push_back(std::atof(part));
      }
    } else {
      options.graphs.push_back(flag);
    }
  }
  std::map<std::string, Total> totals;
  std::printf(
      "| graph | budget | overhead | bound | gap | Mticks | cpu s | by |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const std::string& name : options.graphs) {
    const auto graph = Read(name);
    if (!graph.has_value()) {
      std::fprintf(stderr, "%s: no such graph\n", name.c_str());
      return 2;
    }
    for (const double fraction : options.budgets) {
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
