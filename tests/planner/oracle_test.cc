// SPDX-License-Identifier: Apache-2.0
//
// All claims of the planner against brute force on small random graphs. Each
// test checks 800 graphs per set of capabilities unless it says otherwise; see
// oracle_graphs.h to check more.
#include "tests/planner/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "planner/bounds/screen.h"
#include "planner/bounds/window_bound.h"
#include "planner/model/flags.h"
#include "planner/planner.h"
#include "tests/planner/oracle_graphs.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

int GraphCount() { return OracleNumber("REPRISE_ORACLE_GRAPHS", 800); }

// Sets of executors: the reference, the tape, any; the last two with replay
// points at some ops only; and with replay windows.
constexpr int kTapeAtPoints = 3, kAnyAtPoints = 4;
constexpr int kTapeInWindows = 5, kAnyInWindows = 6;

Capabilities CapabilitiesOf(int set, Random& random) {
  if (set == 0) return {};
  return set == 1 || set == kTapeAtPoints || set == kTapeInWindows
             ? TapeCapabilities()
             : RandomCapabilities(random);
}

StepGraph GraphFor(int set, Random& random, int most_ops) {
  StepGraph graph = RandomGraph(random, most_ops);
  if (set == kTapeAtPoints || set == kAnyAtPoints) {
    LimitReplayPoints(graph, random);
  }
  if (set >= kTapeInWindows) LimitReplays(graph, random);
  return graph;
}

// A budget that makes planning hard: from just below the largest working set to
// the base peak.
int64_t TightBudget(const Problem& problem, Random& random) {
  const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
  const int64_t most = std::max(problem.base.peak_bytes, least + 1);
  return std::max<int64_t>(0, least - 1 + random.Below(most - least + 1));
}

class OracleTest : public testing::TestWithParam<int> {};

TEST_P(OracleTest, TheEvaluatorAgreesWithTheBestSchedule) {
  Random random(1);
  for (int i = 0; i < GraphCount() / 2; ++i) {
    const StepGraph graph = GraphFor(GetParam(), random, 8);
    const Capabilities capabilities = CapabilitiesOf(GetParam(), random);
    ASSERT_EQ(Validate(graph), OkStatus()) << "graph " << i;
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t budget = TightBudget(problem, random);

    const auto best = BestSchedule(graph, capabilities, budget);

    if (!best.has_value()) continue;
    const auto evaluation = Evaluate(graph, best->schedule, capabilities);
    ASSERT_TRUE(evaluation.ok())
        << "graph " << i << ": " << evaluation.status().message();
    EXPECT_LE(evaluation->peak_bytes, budget) << "graph " << i;
    EXPECT_EQ(evaluation->time_ns, best->time_ns) << "graph " << i;
  }
}

TEST_P(OracleTest, TheBoundIsNeverAboveAndThePlanNeverBelowTheOptimum) {
  OracleShares shares;
  for (const int i : OracleGraphs(1600)) {
    Random random = OracleRandom(2, i);
    const StepGraph graph = GraphFor(GetParam(), random, 9);
    const Capabilities capabilities = CapabilitiesOf(GetParam(), random);
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t budget = TightBudget(problem, random);
    SCOPED_TRACE("graph " + std::to_string(i) + " budget " +
                 std::to_string(budget));

    const auto best = BestSchedule(graph, capabilities, budget);
    const auto plan = MakePlan(graph, {.budget_bytes = budget,
                                       .capabilities = capabilities,
                                       .target_gap = 0,
                                       .max_ticks = 300'000});

    ASSERT_TRUE(plan.ok()) << plan.status().message();
    if (!best.has_value()) {
      EXPECT_FALSE(plan->feasible);
      continue;
    }
    ++shares.feasible;
    ASSERT_TRUE(plan->feasible || plan->undecided)
        << "called impossible below " << plan->infeasible.smallest_budget_bytes;
    const int64_t optimum = best->time_ns - problem.base.time_ns;
    const double base_time =
        static_cast<double>(std::max<int64_t>(1, problem.base.time_ns));
    EXPECT_LE(plan->bound * base_time, static_cast<double>(optimum) + 1e-6);
    if (!plan->feasible) {
      shares.Missed(i, budget);
      continue;
    }
    ++shares.found;
    const auto evaluation = Evaluate(graph, plan->schedule, capabilities);
    ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
    EXPECT_LE(evaluation->peak_bytes, budget);
    const int64_t added = evaluation->time_ns - problem.base.time_ns;
    EXPECT_GE(added, optimum);
    shares.optimal += added == optimum;
    if (added != optimum) shares.Missed(i, budget);
    if (plan->proven_optimal) {
      EXPECT_EQ(added, optimum);
    }
  }
  shares.Expect99Percent();
}

TEST_P(OracleTest, ImpossibleIsTrueBelowTheSmallestBudget) {
  Random random(3);
  for (int i = 0; i < GraphCount() / 2; ++i) {
    const StepGraph graph = GraphFor(GetParam(), random, 8);
    const Capabilities capabilities = CapabilitiesOf(GetParam(), random);
    const Problem problem = MakeProblem(graph, capabilities);

    int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    for (OpId at = 0; at < graph.op_count(); ++at) {
      WindowBound window(problem, at);
      least = std::max(
          least, window.Solve(problem.base.peak_bytes).least_budget_bytes);
    }

    EXPECT_LE(least, problem.base.peak_bytes) << "graph " << i;
    EXPECT_FALSE(BestSchedule(graph, capabilities, least - 1).has_value())
        << "graph " << i << " least " << least;
  }
}

TEST_P(OracleTest, TheGeneratorAgreesWithTheEvaluator) {
  Random random(4);
  int valid = 0;
  for (int i = 0; i < GraphCount() * 2; ++i) {
    const StepGraph graph = GraphFor(GetParam(), random, 14);
    const Capabilities capabilities = CapabilitiesOf(GetParam(), random);
    const Problem problem = MakeProblem(graph, capabilities);
    Generator generator(problem);
    Flags flags = BaseFlags(problem);
    for (int32_t f = 0; f < problem.flag_count(); ++f) {
      if (problem.flag_fixed[f] == 0 && random.Percent(30)) {
        flags[f] = static_cast<Retention>(random.Below(3));
      }
    }

    const Generated generated = generator.Generate(flags);

    if (!generated.valid) continue;
    ++valid;
    const Schedule schedule =
        WithFrees(graph, generator.execs(), capabilities.free_policy);
    const auto evaluation = Evaluate(graph, schedule, capabilities);
    ASSERT_TRUE(evaluation.ok())
        << "graph " << i << ": " << evaluation.status().message();
    EXPECT_EQ(evaluation->peak_bytes, generated.peak_bytes) << "graph " << i;
    EXPECT_EQ(evaluation->time_ns, generated.time_ns) << "graph " << i;
    EXPECT_EQ(evaluation->execs, static_cast<int>(generator.execs().size()));
  }
  EXPECT_GT(valid, GraphCount());
}

TEST_P(OracleTest, BaseFlagsGenerateTheBaseOrder) {
  Random random(5);
  for (int i = 0; i < 500; ++i) {
    const StepGraph graph = GraphFor(GetParam(), random, 12);
    const Capabilities capabilities = CapabilitiesOf(GetParam(), random);
    const Problem problem = MakeProblem(graph, capabilities);
    Generator generator(problem);

    const Generated generated = generator.Generate(BaseFlags(problem));

    ASSERT_TRUE(generated.valid) << "graph " << i;
    EXPECT_EQ(static_cast<int>(generator.execs().size()), graph.op_count());
    EXPECT_EQ(generated.peak_bytes, problem.base.peak_bytes) << "graph " << i;
  }
}

std::string NameOfSet(const testing::TestParamInfo<int>& info) {
  static constexpr const char* kNames[] = {
      "Reference",         "Tape",          "Any",         "TapeAtReplayPoints",
      "AnyAtReplayPoints", "TapeInWindows", "AnyInWindows"};
  return kNames[info.param];
}
INSTANTIATE_TEST_SUITE_P(Executors, OracleTest,
                         testing::Values(0, 1, 2, kTapeAtPoints, kAnyAtPoints,
                                         kTapeInWindows, kAnyInWindows),
                         NameOfSet);

}  // namespace
}  // namespace reprise::planner
