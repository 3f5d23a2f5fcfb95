// SPDX-License-Identifier: Apache-2.0
//
// Checks by brute force that the reduced graph has the optimum of the original,
// for each rule alone and for all together.
#include "planner/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/generate/generate.h"
#include "planner/bounds/screen.h"
#include "planner/planner.h"
#include "tests/planner/oracle.h"
#include "tests/planner/oracle_graphs.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

using ::testing::ElementsAre;

constexpr ReduceOptions kNone = {.empty = false,
                                 .unread = false,
                                 .twins = false,
                                 .sinks = false,
                                 .in_place = false};

// Returns all rules together, then each alone.
std::vector<ReduceOptions> Rules() {
  std::vector<ReduceOptions> rules(6, kNone);
  rules[0] = {};
  rules[1].empty = true;
  rules[2].unread = true;
  rules[3].twins = true;
  rules[4].sinks = true;
  rules[5].in_place = true;
  return rules;
}

// A random graph that the rules apply to: some ops are followed by one that
// only reads, or that changes what they wrote; some outputs come in pairs.
StepGraph ReducibleGraph(Random& random) {
  const StepGraph plain = RandomGraph(random, 5);
  StepGraph graph = plain;
  graph.ops.clear();
  std::vector<OpId> number(plain.ops.size());
  const auto some_kind = [&](const Op& op) {
    return random.Percent(70) ? op.kind : OpKind::kPure;
  };
  for (OpId o = 0; o < plain.op_count(); ++o) {
    const Op& op = plain.ops[o];
    number[o] = graph.op_count();
    const auto add_sink = [&](std::vector<StorageId> reads) {
      std::erase_if(reads, [&](StorageId) { return random.Percent(30); });
      graph.ops.push_back(
          {.time_ns = random.Below(3),
           .workspace_bytes = random.Below(4),
           .phase = random.Percent(90) ? op.phase : Phase::kOptimizer,
           .kind = some_kind(op),
           .reads = reads});
    };
    if (random.Percent(20)) add_sink(op.reads);
    number[o] = graph.op_count();
    graph.ops.push_back(op);
    std::vector<StorageId> around = op.reads;
    around.insert(around.end(), op.writes.begin(), op.writes.end());
    if (random.Percent(20)) {
      if (random.Percent(50)) number[o] = graph.op_count();
      add_sink(around);
    }
    if (op.writes.size() == 1 && random.Percent(50)) {
      std::vector<StorageId> reads = {op.writes[0]};
      if (!op.reads.empty() && random.Percent(30)) {
        reads.push_back(op.reads[0]);
      }
      graph.ops.push_back(
          {.time_ns = random.Below(4),
           .workspace_bytes = random.Percent(30) ? random.Below(4) : 0,
           .state_bytes = op.kind == OpKind::kSeeded ? random.Below(2) : 0,
           .phase = random.Percent(90) ? op.phase : Phase::kBackward,
           .kind = some_kind(op),
           .reads = reads,
           .mutates = {op.writes[0]}});
    }
  }
  for (Storage& storage : graph.storages) {
    if (storage.release_op != kNoOp) {
      storage.release_op = number[storage.release_op];
    }
    if (random.Percent(15)) storage.bytes = 0;
  }
  for (OpId o = 0; o < graph.op_count(); ++o) {
    if (graph.ops[o].writes.empty() || !random.Percent(25)) continue;
    const StorageId one = graph.ops[o].writes[0];
    const StorageId twin = graph.storage_count();
    graph.storages.push_back(graph.storages[one]);
    graph.ops[o].writes.push_back(twin);
    for (Op& op : graph.ops) {
      if (std::count(op.reads.begin(), op.reads.end(), one) > 0 &&
          random.Percent(95)) {
        op.reads.push_back(twin);
      }
    }
    if (std::count(graph.required.begin(), graph.required.end(), one) > 0) {
      graph.required.push_back(twin);
    }
  }
  return graph;
}

int64_t SomeBudget(const Problem& problem, Random& random) {
  const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
  const int64_t most = std::max(problem.base.peak_bytes, least + 1);
  return std::max<int64_t>(0, least - 1 + random.Below(most - least + 1));
}

class ReduceTest : public testing::TestWithParam<int> {};

TEST_P(ReduceTest, KeepsTheOptimumAndTheWayBack) {
  std::vector<int> changed(Rules().size(), 0);
  int expanded = 0;
  for (const int i : OracleGraphs(700)) {
    Random random = OracleRandom(40 + static_cast<uint64_t>(GetParam()), i);
    StepGraph graph = ReducibleGraph(random);
    if (GetParam() == 3) LimitReplayPoints(graph, random);
    ASSERT_TRUE(Validate(graph).ok()) << Validate(graph).message();
    const Capabilities capabilities = GetParam() == 0 ? Capabilities{}
                                      : GetParam() % 2 == 1
                                          ? TapeCapabilities()
                                          : RandomCapabilities(random);
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t budget = SomeBudget(problem, random);
    if (graph.op_count() > 10 || graph.storage_count() > 10) continue;
    const auto best = BestSchedule(graph, capabilities, budget);
    for (size_t rule = 0; rule < Rules().size(); ++rule) {
      SCOPED_TRACE("graph " + std::to_string(i) + " rule " +
                   std::to_string(rule) + " budget " + std::to_string(budget));
      const Reduction reduction(problem, Rules()[rule]);
      if (!reduction.changed()) continue;
      ++changed[rule];
      const StepGraph& smaller = reduction.graph();
      ASSERT_TRUE(Validate(smaller).ok()) << Validate(smaller).message();
      const Problem reduced = MakeProblem(smaller, capabilities);
      EXPECT_EQ(reduced.base.time_ns, problem.base.time_ns);
      EXPECT_EQ(reduced.base.peak_bytes, problem.base.peak_bytes);

      const auto reduced_best = BestSchedule(smaller, capabilities, budget);

      ASSERT_EQ(reduced_best.has_value(), best.has_value());
      if (!best.has_value()) continue;
      EXPECT_EQ(reduced_best->time_ns, best->time_ns);
      std::vector<OpId> execs;
      for (const Entry& entry : reduced_best->schedule) {
        if (entry.kind == Entry::Kind::kExec) execs.push_back(entry.id);
      }
      const auto alone =
          Evaluate(smaller, WithFrees(smaller, execs, capabilities.free_policy),
                   capabilities);
      // A pinned storage that is rewritten can stay longer than it has to.
      if (!alone.ok() || alone->peak_bytes > budget) continue;
      ++expanded;
      const auto evaluation = Evaluate(
          graph,
          WithFrees(graph, reduction.Expand(execs), capabilities.free_policy),
          capabilities);
      ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
      EXPECT_EQ(evaluation->time_ns, best->time_ns);
      EXPECT_LE(evaluation->peak_bytes, budget);
    }
  }
  for (size_t rule = 0; rule < changed.size(); ++rule) {
    EXPECT_GT(changed[rule], 20) << "rule " << rule;
  }
  EXPECT_GT(expanded, 200);
}

std::string NameOfSet(const testing::TestParamInfo<int>& info) {
  static constexpr const char* kNames[] = {"Reference", "Tape", "Any",
                                           "TapeAtReplayPoints"};
  return kNames[info.param];
}
INSTANTIATE_TEST_SUITE_P(Executors, ReduceTest, testing::Values(0, 1, 2, 3),
                         NameOfSet);

// a makes x 4 and, in place, b changes it; v reads x and makes nothing; c makes
// y 8, y2 2 and z 0 from x; d reads y and y2 and makes 3, which nothing reads.
StepGraph Reducible() {
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 8}, {.bytes = 2},
                    {.bytes = 0}, {.bytes = 3}, {.bytes = 1}};
  graph.ops = {{.time_ns = 1, .writes = {0}},
               {.time_ns = 2, .reads = {0}, .mutates = {0}},
               {.time_ns = 3, .reads = {0}},
               {.time_ns = 4, .reads = {0}, .writes = {1, 2, 3}},
               {.time_ns = 5, .reads = {1, 2, 3}, .writes = {4, 5}}};
  graph.required = {5};
  return graph;
}

TEST(ReduceTest, TakesOutWhatNeedsNoDecision) {
  const StepGraph graph = Reducible();
  const Problem problem = MakeProblem(graph, {});

  const Reduction reduction(problem);

  // The reduced ops: a and b; c; d with 3 bytes of workspace; one with v's
  // time.
  const StepGraph& smaller = reduction.graph();
  ASSERT_EQ(smaller.op_count(), 4);
  EXPECT_EQ(smaller.ops[0].time_ns, 3);
  EXPECT_EQ(smaller.ops[0].launches, 2);
  EXPECT_EQ(RerunNs(smaller.ops[0]), 3);
  EXPECT_EQ(smaller.ops[2].workspace_bytes, 3);
  EXPECT_EQ(smaller.ops[3].time_ns, 3);
  ASSERT_EQ(smaller.storage_count(), 3);
  EXPECT_EQ(smaller.storages[1].bytes, 10);
  const std::vector<OpId> execs = {0, 1, 0, 1, 2, 3};
  EXPECT_THAT(reduction.Expand(execs), ElementsAre(0, 1, 2, 3, 0, 1, 3, 4));
}

TEST(ReduceTest, NamesTheReasonOfARefusalInTheOriginal) {
  const StepGraph graph = Reducible();

  const auto plan = MakePlan(graph, {.budget_bytes = 10});

  // d needs 8 + 2 + 0 and makes 3 + 1; c reads 4 and makes 8 + 2.
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->feasible);
  EXPECT_EQ(plan->infeasible.smallest_budget_bytes, 14);
  EXPECT_EQ(plan->infeasible.blocking_op, 3);
  EXPECT_THAT(plan->infeasible.storages, ElementsAre(1, 0, 2, 3));
}

TEST(ReduceTest, GraphsWithoutAnythingToReduceStayAsTheyAre) {
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 8}};
  graph.ops = {{.time_ns = 1, .writes = {0}},
               {.time_ns = 2, .reads = {0}, .writes = {1}}};
  graph.required = {1};
  const Problem problem = MakeProblem(graph, {});

  EXPECT_FALSE(Reduction(problem).changed());
}

TEST(ReduceTest, PlansOfGeneratedStepsFitAsWithout) {
  for (const GraphKind kind : {GraphKind::kMoe, GraphKind::kTransformer}) {
    const auto graph = Generate({.kind = kind, .ops = 400});
    ASSERT_TRUE(graph.ok());
    const Problem problem = MakeProblem(*graph, {});
    EXPECT_TRUE(Reduction(problem).IsWorthIt());
    const int64_t dynamic = problem.base.peak_bytes - problem.static_bytes;
    Request request{.budget_bytes = problem.static_bytes + dynamic * 6 / 10,
                    .max_ticks = 3'000'000};

    const auto with = MakePlan(*graph, request);
    request.reduce = false;
    const auto without = MakePlan(*graph, request);

    ASSERT_TRUE(with.ok() && without.ok());
    ASSERT_TRUE(with->feasible);
    ASSERT_TRUE(without->feasible);
    EXPECT_LE(with->evaluation.peak_bytes, request.budget_bytes);
    EXPECT_LE(with->bound, without->overhead + 1e-9);
    EXPECT_LE(without->bound, with->overhead + 1e-9);
    EXPECT_LE(with->overhead, without->overhead + request.target_gap);
  }
}

TEST(ReduceTest, LongRunsOfOpsWithoutOutputsAreFoldedInOneGo) {
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 8}};
  graph.ops = {{.time_ns = 1, .writes = {0}}};
  for (int i = 0; i < 200'000; ++i) {
    graph.ops.push_back({.time_ns = 1, .reads = {0}});
  }
  graph.ops.push_back({.time_ns = 1, .reads = {0}, .writes = {1}});
  graph.required = {1};
  const Problem problem = MakeProblem(graph, {});

  const Reduction reduction(problem);

  ASSERT_EQ(reduction.graph().op_count(), 3);
  const auto execs = reduction.Expand(std::vector<OpId>{0, 1, 2});
  ASSERT_EQ(execs.size(), graph.ops.size());
  EXPECT_TRUE(std::is_sorted(execs.begin(), execs.end()));
}

TEST(ReduceTest, CurvesAreThoseOfTheOriginal) {
  const StepGraph graph = Reducible();
  Request request{.max_ticks = 1'000'000};

  const auto with = Sweep(graph, request, 8);
  request.reduce = false;
  const auto without = Sweep(graph, request, 8);

  ASSERT_TRUE(with.ok() && without.ok());
  ASSERT_EQ(with->size(), without->size());
  for (size_t i = 0; i < with->size(); ++i) {
    EXPECT_EQ((*with)[i].budget_bytes, (*without)[i].budget_bytes);
    EXPECT_EQ((*with)[i].feasible, (*without)[i].feasible);
    EXPECT_EQ((*with)[i].time_ns, (*without)[i].time_ns);
    EXPECT_EQ((*with)[i].infeasible.blocking_op,
              (*without)[i].infeasible.blocking_op);
    EXPECT_EQ((*with)[i].infeasible.storages,
              (*without)[i].infeasible.storages);
  }
}

}  // namespace
}  // namespace reprise::planner
