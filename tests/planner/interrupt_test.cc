// SPDX-License-Identifier: Apache-2.0
//
// Small random graphs are searched, stopped after each question of should_stop
// in turn, and compared with brute force: whenever a search is interrupted, its
// statements must be true. No clock is involved: should_stop counts how often
// it is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "planner/bounds/pebble.h"
#include "planner/bounds/screen.h"
#include "planner/planner.h"
#include "tests/planner/oracle.h"
#include "tests/planner/oracle_graphs.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

// Interrupted runs per graph and entry point, at most.
constexpr int kMostRuns = 60;

// A graph, a budget that makes planning hard, and the best schedule.
struct Case {
  StepGraph graph;
  Capabilities capabilities;
  int64_t budget_bytes = 0;
  int64_t base_time_ns = 0;
  std::optional<OracleAnswer> best;

  Request Asked(const std::function<bool()>& should_stop) const {
    return {.budget_bytes = budget_bytes,
            .capabilities = capabilities,
            .target_gap = 0,
            .max_ticks = 1'000'000,
            .should_stop = should_stop};
  }
  // Least overhead, as a part of the time without a plan.
  double Optimum() const {
    return static_cast<double>(best->time_ns - base_time_ns) /
           static_cast<double>(std::max<int64_t>(1, base_time_ns));
  }
};

Case MakeCase(int set, int number) {
  Random random = OracleRandom(71, number);
  Case made;
  made.graph = RandomGraph(random, 9);
  made.capabilities = set == 0   ? Capabilities{}
                      : set == 1 ? TapeCapabilities()
                                 : RandomCapabilities(random);
  const Problem problem = MakeProblem(made.graph, made.capabilities);
  const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
  const int64_t most = std::max(problem.base.peak_bytes, least + 1);
  made.budget_bytes =
      std::max<int64_t>(0, least - 1 + random.Below(most - least + 1));
  made.base_time_ns = problem.base.time_ns;
  made.best = BestSchedule(made.graph, made.capabilities, made.budget_bytes);
  return made;
}

// Calls `run` with a should_stop that never returns true, then with ones that
// return true after the first, second, ... question: at most kMostRuns, evenly
// spread.
template <typename Run>
void CutShortEverywhere(const Run& run) {
  int questions = 0;
  run([&questions] { return ++questions < 0; });
  const int stride = std::max(1, questions / kMostRuns);
  for (int k = 0; k < questions; k += stride) {
    SCOPED_TRACE("stopped after question " + std::to_string(k));
    int asked = 0;
    run([&asked, k] { return asked++ >= k; });
    if (testing::Test::HasFailure()) return;
  }
}

void ExpectTrue(const Case& graph, double bound, double overhead, bool proven) {
  if (!graph.best.has_value()) return;
  EXPECT_LE(bound, graph.Optimum() + 1e-9);
  EXPECT_GE(overhead, graph.Optimum() - 1e-9);
  if (proven) {
    EXPECT_NEAR(overhead, graph.Optimum(), 1e-9);
  }
}

class InterruptTest : public testing::TestWithParam<int> {};

TEST_P(InterruptTest, APlanThatIsCutShortSaysNothingFalse) {
  for (const int number : OracleGraphs(40)) {
    const Case graph = MakeCase(GetParam(), number);
    SCOPED_TRACE("graph " + std::to_string(number));
    CutShortEverywhere([&](const std::function<bool()>& should_stop) {
      const auto plan = MakePlan(graph.graph, graph.Asked(should_stop));
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      if (!plan->feasible) {
        EXPECT_TRUE(plan->undecided || !graph.best.has_value());
        if (graph.best.has_value()) {
          EXPECT_LE(plan->infeasible.smallest_budget_bytes, graph.budget_bytes);
          EXPECT_LE(plan->bound, graph.Optimum() + 1e-9);
        }
        return;
      }
      ASSERT_TRUE(graph.best.has_value());
      ExpectTrue(graph, plan->bound, plan->overhead, plan->is_optimal);
    });
    if (HasFailure()) return;
  }
}

TEST_P(InterruptTest, ABoundThatIsCutShortSaysNothingFalse) {
  for (const int number : OracleGraphs(100)) {
    const Case graph = MakeCase(GetParam(), number);
    SCOPED_TRACE("graph " + std::to_string(number));
    CutShortEverywhere([&](const std::function<bool()>& should_stop) {
      const auto bound = LowerBound(graph.graph, graph.Asked(should_stop));
      ASSERT_TRUE(bound.ok()) << bound.status().message();
      if (!graph.best.has_value()) return;
      EXPECT_FALSE(bound->impossible);
      EXPECT_LE(bound->overhead, graph.Optimum() + 1e-9);
    });
    if (HasFailure()) return;
  }
}

TEST_P(InterruptTest, ACurveThatIsCutShortSaysNothingFalse) {
  for (const int number : OracleGraphs(6)) {
    const Case graph = MakeCase(GetParam(), number);
    SCOPED_TRACE("graph " + std::to_string(number));
    CutShortEverywhere([&](const std::function<bool()>& should_stop) {
      const auto curve = Sweep(graph.graph, graph.Asked(should_stop), 3);
      ASSERT_TRUE(curve.ok()) << curve.status().message();
      for (const CurvePoint& point : *curve) {
        const auto best =
            BestSchedule(graph.graph, graph.capabilities, point.budget_bytes);
        Case at{.graph = {},
                .capabilities = {},
                .budget_bytes = point.budget_bytes,
                .base_time_ns = graph.base_time_ns,
                .best = best};
        if (!best.has_value()) {
          EXPECT_FALSE(point.feasible);
          continue;
        }
        EXPECT_TRUE(point.feasible || point.infeasible.smallest_budget_bytes <=
                                          point.budget_bytes);
        ExpectTrue(at, point.bound,
                   point.feasible ? point.overhead : at.Optimum(), false);
      }
    });
    if (HasFailure()) return;
  }
}

// One set of this graph has 500 values with up to 500 needs each: a quarter of
// a million values to look at before the next set.
TEST(PebbleTest, IsAskedToStopWithinOneSetOfManyValues) {
  constexpr int kOps = 500;
  StepGraph graph;
  for (OpId o = 0; o < kOps; ++o) {
    Op op{.time_ns = 1, .writes = {o}};
    for (StorageId s = 0; s < o; ++s) op.reads.push_back(s);
    graph.ops.push_back(std::move(op));
    graph.storages.push_back({.bytes = 1});
  }
  const Problem problem = MakeProblem(graph, {});
  const auto search = [&](const std::function<bool()>& should_stop) {
    return LeastPeakOf(problem, kOps - 1, /*enough_bytes=*/kOps,
                       /*most_states=*/1,
                       /*most_ticks=*/1'000'000'000, should_stop);
  };
  int asked = 0;

  const PebbleResult whole = search({});
  const PebbleResult cut = search([&asked] { return ++asked == 2; });

  EXPECT_EQ(asked, 2);
  EXPECT_LT(cut.ticks, whole.ticks / 2);
  // Known before the first question: the op itself reads all values before it.
  EXPECT_EQ(cut.least_bytes, kOps);
}

std::string NameOfSet(const testing::TestParamInfo<int>& info) {
  return info.param == 0 ? "Reference" : info.param == 1 ? "Tape" : "Any";
}
INSTANTIATE_TEST_SUITE_P(Executors, InterruptTest, testing::Values(0, 1, 2),
                         NameOfSet);

}  // namespace
}  // namespace reprise::planner
