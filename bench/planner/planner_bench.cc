// SPDX-License-Identifier: Apache-2.0
//
// Rates of the planner's inner loops on a generated transformer step, on one
// core:
//
//   evaluator   schedule entries replayed per second, frees included
//   moves       re-runs inserted or removed per second, with the peak after
//               each; half of them are undone
//   steps       steps of the local search per second, rejected ones included
//
//   planner_bench [ops] [seconds per figure]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "bench/generate/generate.h"
#include "planner/model/exec_list.h"
#include "planner/model/random.h"
#include "planner/search/local_search.h"

namespace reprise::planner {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double EntriesPerSecond(const StepGraph& graph, double seconds) {
  const Schedule schedule = BaseSchedule(graph, FreePolicy::kEager);
  const Clock::time_point start = Clock::now();
  int64_t entries = 0;
  while (SecondsSince(start) < seconds) {
    if (!Evaluate(graph, schedule, {}).ok()) return 0;
    entries += static_cast<int64_t>(schedule.size());
  }
  return static_cast<double>(entries) / SecondsSince(start);
}

double MovesPerSecond(const Problem& problem, double seconds) {
  ExecList list(problem);
  std::vector<OpId> execs(problem.op_count);
  for (OpId o = 0; o < problem.op_count; ++o) execs[o] = o;
  list.Assign(execs);
  Random random(1);
  const Clock::time_point start = Clock::now();
  int64_t moves = 0;
  while (SecondsSince(start) < seconds) {
    for (int i = 0; i < 1000; ++i) {
      const size_t mark = list.Mark();
      const auto& reruns = list.reruns();
      if (reruns.size() > 2000 || (!reruns.empty() && random.Percent(40))) {
        list.Erase(reruns[random.Below(reruns.size())]);
      } else {
        const OpId op = random.Below(problem.op_count);
        const ExecList::Node next =
            list.Move(op, 1 + random.Below(problem.op_count));
        if (!list.MayInsert(op, next)) continue;
        list.InsertBefore(next, op);
      }
      if (list.PeakBytes() < problem.static_bytes) return 0;
      ++moves;
      if (random.Percent(50)) list.UndoTo(mark);
    }
    list.Commit();
  }
  return static_cast<double>(moves) / SecondsSince(start);
}

double StepsPerSecond(const Problem& problem, double seconds) {
  const std::function<bool()> never;
  std::vector<OpId> execs(problem.op_count);
  for (OpId o = 0; o < problem.op_count; ++o) execs[o] = o;
  const int64_t dynamic = problem.base.peak_bytes - problem.static_bytes;
  const Clock::time_point start = Clock::now();
  int64_t steps = 0;
  while (SecondsSince(start) < seconds) {
    Effort effort(100'000'000, never);
    Archive archive;
    const LocalSearchOptions options{
        .budget_bytes = problem.static_bytes + dynamic / 10 * 6,
        .ticks = 20'000'000};
    steps += LocalSearch(problem, options, execs, archive, effort);
  }
  return static_cast<double>(steps) / SecondsSince(start);
}

int Main(int argc, char** argv) {
  const int ops = argc > 1 ? std::atoi(argv[1]) : 10'000;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 1.0;
  const auto graph = Generate({.kind = GraphKind::kTransformer, .ops = ops});
  if (!graph.ok()) {
    std::fprintf(stderr, "%s\n", graph.status().message().c_str());
    return 2;
  }
  const Problem problem = MakeProblem(*graph, {});
  std::printf("transformer step of %d ops\n", problem.op_count);
  std::printf("  evaluator   %10.0f entries/s\n",
              EntriesPerSecond(*graph, seconds));
  std::printf("  moves       %10.0f /s\n", MovesPerSecond(problem, seconds));
  std::printf("  steps       %10.0f /s\n", StepsPerSecond(problem, seconds));
  return 0;
}

}  // namespace
}  // namespace reprise::planner

int main(int argc, char** argv) { return reprise::planner::Main(argc, argv); }
