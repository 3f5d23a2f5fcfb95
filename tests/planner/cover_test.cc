// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/cover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "bench/generate/generate.h"
#include "planner/bounds/screen.h"
#include "planner/bounds/window_bound.h"
#include "planner/construct/segments.h"
#include "planner/model/evaluate.h"
#include "planner/model/random.h"
#include "planner/planner.h"
#include "tests/planner/chain_step.h"
#include "tests/planner/oracle.h"
#include "tests/planner/random_graph.h"
#include "tests/planner/tangle.h"

namespace reprise::planner {
namespace {

const std::function<bool()> kNever;
constexpr int64_t kMany = int64_t{1} << 60;

std::vector<OpId> BaseOrder(const Problem& problem) {
  std::vector<OpId> execs(problem.op_count);
  std::iota(execs.begin(), execs.end(), 0);
  return execs;
}

StatusOr<Evaluation> Replay(const Problem& problem,
                            const std::vector<OpId>& execs) {
  return Evaluate(
      *problem.graph,
      WithFrees(*problem.graph, execs, problem.capabilities.free_policy),
      problem.capabilities);
}

TEST(CoverTest, MakesAValueAgainWhereItsMemoryIsNeeded) {
  // a makes x 4, b reads x and makes y 8, c reads y and makes z 1, d reads x and
  // z. While c runs, x waits for d: 4 + 8 + 1 = 13. Without it c needs 9, b 12.
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 8}, {.bytes = 1}, {.bytes = 1}};
  graph.ops = {{.time_ns = 1, .writes = {0}},
               {.time_ns = 1, .reads = {0}, .writes = {1}},
               {.time_ns = 1, .reads = {1}, .writes = {2}},
               {.time_ns = 1, .reads = {0, 2}, .writes = {3}}};
  graph.required = {3};
  const Problem problem = MakeProblem(graph, {});
  Effort effort(1'000'000, kNever);

  EXPECT_EQ(Cover(problem, 12, {0, 1, 2, 3}, kMany, effort),
            (std::vector<OpId>{0, 1, 2, 0, 3}));
  EXPECT_EQ(Cover(problem, 13, {0, 1, 2, 3}, kMany, effort),
            (std::vector<OpId>{0, 1, 2, 3}));
  EXPECT_TRUE(Cover(problem, 11, {0, 1, 2, 3}, kMany, effort).empty());
}

TEST(CoverTest, DeletesReRunsThatTheBudgetDoesNotNeed) {
  const StepGraph graph = Chain(4);
  const Problem problem = MakeProblem(graph, {});
  std::vector<OpId> execs = BaseOrder(problem);
  execs.insert(execs.begin() + 4, {1, 2});  // before the first backward op
  ASSERT_TRUE(Replay(problem, execs).ok());
  Effort effort(1'000'000, kNever);

  EXPECT_EQ(Cover(problem, problem.base.peak_bytes, execs, kMany, effort),
            BaseOrder(problem));
}

TEST(CoverTest, NeverBeatsTheOptimumAndKeepsTheBudgetInGraphsWithEveryFeature) {
  Random random(11);
  int found = 0, optimal = 0;
  for (int i = 0; i < 600; ++i) {
    StepGraph graph = RandomGraph(random, 9);
    if (random.Percent(30)) LimitReplayPoints(graph, random);
    if (random.Percent(30)) LimitReplays(graph, random);
    const Capabilities capabilities = RandomCapabilities(random);
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t budget =
        least + (problem.base.peak_bytes - least) * random.Below(100) / 100;
    Effort effort(kMany, kNever);

    const auto execs =
        Cover(problem, budget, BaseOrder(problem), kMany, effort);

    if (execs.empty()) continue;
    const auto evaluation = Replay(problem, execs);
    ASSERT_TRUE(evaluation.ok()) << i << ": " << evaluation.status().message();
    EXPECT_LE(evaluation->peak_bytes, budget) << i;
    const auto best = BestSchedule(graph, capabilities, budget);
    ASSERT_TRUE(best.has_value()) << i;
    EXPECT_GE(evaluation->time_ns, best->time_ns) << i;
    ++found;
    if (evaluation->time_ns == best->time_ns) ++optimal;
  }
  // A greedy: seldom without a schedule, often with the best one.
  EXPECT_GE(found, 150);
  EXPECT_GE(optimal, found / 2);
}

TEST(CoverTest, CutShortAtAnyTickItReturnsNothingOrWhatFits) {
  Random random(5);
  for (int i = 0; i < 20; ++i) {
    const StepGraph graph = PureTangle(random, 40);
    const Problem problem = MakeProblem(graph, {});
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t budget = least + (problem.base.peak_bytes - least) * 7 / 10;
    Effort whole(kMany, kNever);
    Cover(problem, budget, BaseOrder(problem), kMany, whole);
    for (int64_t ticks = 0; ticks < whole.ticks();
         ticks += 1 + whole.ticks() / 40) {
      Effort by_caller(kMany, kNever), by_effort(ticks, kNever);
      for (const auto& execs :
           {Cover(problem, budget, BaseOrder(problem), ticks, by_caller),
            Cover(problem, budget, BaseOrder(problem), kMany, by_effort)}) {
        if (execs.empty()) continue;
        const auto evaluation = Replay(problem, execs);
        ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
        EXPECT_LE(evaluation->peak_bytes, budget);
      }
      Effort effort(kMany, kNever);
      std::vector<OpId> nearest;
      if (!Cover(problem, budget, BaseOrder(problem), ticks, effort, &nearest)
               .empty()) {
        EXPECT_TRUE(nearest.empty());
        continue;
      }
      const auto near = Replay(problem, nearest);
      ASSERT_TRUE(near.ok()) << near.status().message();
      EXPECT_GT(near->peak_bytes, budget);
    }
  }
}

TEST(CoverTest, PlansOfLongStepsThatAreCutShortFitAndTheirBoundHolds) {
  const auto graph = Generate({.kind = GraphKind::kUNet, .ops = 1600});
  ASSERT_TRUE(graph.ok());
  const Problem problem = MakeProblem(*graph, {.seeded_ok = true});
  Request request{
      .budget_bytes = problem.static_bytes +
                      (problem.base.peak_bytes - problem.static_bytes) / 3,
      .capabilities = {.seeded_ok = true},
      .max_ticks = 60'000'000,
      .certify_iterations = 0};
  const auto whole = MakePlan(*graph, request);
  ASSERT_TRUE(whole.ok());
  ASSERT_TRUE(whole->feasible);
  int questions = 0, last = 0;
  request.should_stop = [&] { return ++questions >= last; };
  for (last = 1; last < 1000; last = last * 2 + 1) {
    questions = 0;

    const auto plan = MakePlan(*graph, request);

    ASSERT_TRUE(plan.ok());
    EXPECT_LE(plan->bound, whole->overhead) << last;
    if (!plan->feasible) {
      EXPECT_TRUE(plan->undecided) << last;
      continue;
    }
    EXPECT_LE(plan->evaluation.peak_bytes, request.budget_bytes) << last;
    EXPECT_GE(plan->overhead, plan->bound) << last;
  }
}

TEST(SegmentsTest, EndsAreWhatCrossesTheCheapestPlaces) {
  // Six layers of 10 bytes, but x_1 is of 4 and x_3 of 1.
  StepGraph graph = Chain(6);
  graph.storages[1].bytes = 4;
  graph.storages[3].bytes = 1;
  const Problem problem = MakeProblem(graph, {});
  const Versions& versions = problem.versions;

  EXPECT_TRUE(SegmentEnds(problem, 1).empty());
  // The even place is behind op 2. Less than half a segment away, behind op 1,
  // fewer bytes cross; behind op 3 is as far as a half.
  EXPECT_EQ(SegmentEnds(problem, 2),
            (std::vector<ValueId>{versions.first_value[1]}));
  // The even places are behind ops 1 and 3.
  EXPECT_EQ(
      SegmentEnds(problem, 3),
      (std::vector<ValueId>{versions.first_value[1], versions.first_value[3]}));
}

TEST(SegmentsTest, AValueThatCrossesSeveralBoundariesCountsOnce) {
  StepGraph graph = Chain(8);
  graph.ops[7].reads.push_back(0);
  const Problem problem = MakeProblem(graph, {});

  for (int count = 1; count <= 16; ++count) {
    std::vector<ValueId> ends = SegmentEnds(problem, count);
    EXPECT_EQ(
        std::count(ends.begin(), ends.end(), problem.versions.first_value[0]),
        count > 1 ? 1 : 0);
    EXPECT_LE(std::ssize(ends), 8);
  }
}

// Layers of two ops: one makes 8 bytes, of which the cut saves every second, the
// other makes a byte of them, which the next layer reads. The backward of a
// layer reads its 8 bytes.
StepGraph LayersOfTwo(int layers) {
  StepGraph graph;
  for (int i = 0; i < layers; ++i) {
    graph.storages.insert(graph.storages.end(), {{.bytes = 8}, {.bytes = 1}});
    Op big{.time_ns = 1, .writes = {2 * i}};
    if (i > 0) big.reads = {2 * i - 1};
    graph.ops.push_back(big);
    graph.ops.push_back(
        {.time_ns = 1, .reads = {2 * i}, .writes = {2 * i + 1}});
  }
  for (int i = layers; i-- > 0;) {
    const StorageId gradient = graph.storage_count();
    graph.storages.push_back({.bytes = 1});
    graph.ops.push_back({.time_ns = 1,
                         .phase = Phase::kBackward,
                         .reads = {2 * i, gradient - 1},
                         .writes = {gradient}});
  }
  graph.required = {graph.storage_count() - 1};
  return graph;
}

// Such a step and its cut.
struct CutLayers {
  explicit CutLayers(int layers)
      : graph(LayersOfTwo(layers)), problem(MakeProblem(graph, {})) {
    cut.at = problem.first_backward;
    for (int i = 0; i < layers; ++i) {
      (i % 2 == 0 ? cut.saved : dropped)
          .push_back(problem.versions.first_value[2 * i]);
    }
  }

  std::vector<ValueId> Ends(int64_t budget_bytes) {
    return FittingEnds(problem, cut, {}, budget_bytes, effort);
  }

  const StepGraph graph;
  const Problem problem;
  KeepSet cut;
  std::vector<ValueId> dropped;
  Effort effort{1'000'000, kNever};
};

TEST(FittingSegmentsTest, AreAsLongAsTheRoomThatPassedBurstsLeave) {
  CutLayers layers(64);

  // 32 values of 8 bytes are saved; the first burst has room for about 4.
  const std::vector<ValueId> ends = layers.Ends(32 * 8 + 4 * 8 + 4);

  // A boundary costs least where only what the cut saves crosses.
  const std::vector<ValueId>& saved = layers.cut.saved;
  std::vector<int> lengths;
  int begin = 64;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    ASSERT_TRUE(std::binary_search(saved.begin(), saved.end(), *end));
    const int layer = layers.problem.versions.storage[*end] / 2;
    lengths.push_back(begin - layer);
    begin = layer;
  }
  ASSERT_GE(lengths.size(), 3U);
  EXPECT_TRUE(std::is_sorted(lengths.begin(), lengths.end()));
  EXPECT_GE(lengths.back(), 2 * lengths.front());
  EXPECT_GT(layers.effort.ticks(), 0);
}

TEST(FittingSegmentsTest, SaveWhatHasNoRoomToRunAgain) {
  CutLayers layers(16);

  // Not even the values that the cut saves fit.
  const std::vector<ValueId> ends = layers.Ends(8);

  for (const ValueId v : layers.dropped) {
    EXPECT_TRUE(std::binary_search(ends.begin(), ends.end(), v)) << v;
  }
}

TEST(FittingSegmentsTest, NeedNoBoundaryWhereOneBurstFits) {
  EXPECT_TRUE(CutLayers(16).Ends(1000).empty());
}

TEST(FittingSegmentsTest,
     ACutThatPaysLessNearTheTurnSavesTheLatestOfEqualValues) {
  const CutLayers layers(64);
  const Problem& problem = layers.problem;
  const std::vector<int64_t> priced = CheaperNearTurn(problem);
  const OpId turn = problem.first_backward;
  WindowBound window(problem, turn);

  const int64_t budget = problem.base.peak_bytes * 3 / 4;
  const WindowResult plain = window.SolveSaving(budget, {});
  const WindowResult tilted = window.SolveSaving(budget, {}, priced);

  ASSERT_TRUE(tilted.has_keep_set);
  EXPECT_LE(tilted.keep_set.saved_bytes, tilted.room_bytes);
  const auto mean_maker = [&](const KeepSet& cut) {
    int64_t sum = 0;
    for (const ValueId v : cut.saved) sum += problem.versions.maker[v];
    return static_cast<double>(sum) /
           static_cast<double>(std::max<size_t>(1, cut.saved.size()));
  };
  ASSERT_TRUE(plain.has_keep_set);
  EXPECT_GT(mean_maker(tilted.keep_set), mean_maker(plain.keep_set));
  // Prices of at most the bytes keep the bound one of the window.
  EXPECT_LE(tilted.added_ns, plain.keep_set.cost_ns);
  for (ValueId v = 0; v < problem.versions.value_count(); ++v) {
    EXPECT_LE(priced[v], problem.BytesOf(v));
    EXPECT_GE(4 * priced[v], 3 * problem.BytesOf(v) - 4);
  }
  // The next cut pays for bytes again.
  EXPECT_EQ(window.SolveSaving(budget, {}).keep_set.saved,
            plain.keep_set.saved);
}

TEST(FittingSegmentsTest, BringALongUNetToTheTargetGap) {
  const auto graph = Generate({.kind = GraphKind::kUNet, .ops = 3000});
  ASSERT_TRUE(graph.ok());
  const Problem problem = MakeProblem(*graph, {});
  Request request;
  request.budget_bytes =
      problem.static_bytes +
      (problem.base.peak_bytes - problem.static_bytes) / 10 * 3;

  const auto plan = MakePlan(*graph, request);

  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->solver, "segments");
  EXPECT_LE(plan->overhead - plan->bound, request.target_gap);
}

}  // namespace
}  // namespace reprise::planner
