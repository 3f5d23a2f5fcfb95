// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/window_ceiling.h"

#include <gtest/gtest.h>

#include "bench/generate/generate.h"
#include "planner/bounds/window_bound.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

// Returns a budget roughly between the largest working set and the base peak.
int64_t SomeBudget(const Problem& problem, Random& random) {
  const int64_t dynamic = problem.base.peak_bytes - problem.static_bytes;
  return problem.static_bytes + dynamic * (40 + random.Below(60)) / 100;
}

// Lowers the ceiling by the cuts of all windows, then solves every window again.
TEST(WindowCeilingTest, NoWindowProvesMoreThanItsCeiling) {
  int known = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    Random random(seed);
    const StepGraph graph = RandomGraph(random, 14);
    const Problem problem = MakeProblem(graph, RandomCapabilities(random));
    const int64_t budget = SomeBudget(problem, random);
    WindowCeiling ceiling(problem, budget);
    for (OpId at = 0; at < problem.op_count; ++at) {
      const WindowResult cut = WindowBound(problem, at).Solve(budget);
      if (cut.has_keep_set) ceiling.Lower(cut.keep_set.recomputed);
    }
    for (OpId at = 0; at < problem.op_count; ++at) {
      if (ceiling.At(at) == WindowCeiling::kUnknown) continue;
      const WindowResult cut = WindowBound(problem, at).Solve(budget);
      EXPECT_FALSE(cut.impossible) << seed << " at " << at;
      EXPECT_LE(cut.added_ns, ceiling.At(at)) << seed << " at " << at;
      known += ceiling.At(at) > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(known, 100);
}

TEST(WindowCeilingTest, OneWindowOfALargeStepAnswersForMostOthers) {
  const StepGraph graph =
      *Generate({.kind = GraphKind::kTransformer, .ops = 3000});
  const Problem problem = MakeProblem(graph, {});
  const int64_t dynamic = problem.base.peak_bytes - problem.static_bytes;
  const int64_t budget = problem.static_bytes + dynamic / 2;
  WindowCeiling ceiling(problem, budget);
  const OpId at = problem.first_backward;
  const WindowResult cut = WindowBound(problem, at).Solve(budget);
  ASSERT_TRUE(cut.has_keep_set);

  ceiling.Lower(cut.keep_set.recomputed);

  int above = 0, open = 0;
  for (OpId o = 0; o < problem.op_count; ++o) {
    if (problem.base_bytes[o] <= budget) continue;
    ++above;
    if (ceiling.At(o) > cut.keep_set.cost_ns) ++open;
  }
  EXPECT_GT(above, 1000);
  EXPECT_LT(open, above / 10);
}

}  // namespace
}  // namespace reprise::planner
