// SPDX-License-Identifier: Apache-2.0
#include "planner/squeeze.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "planner/evaluate.h"
#include "planner/free_order.h"
#include "planner/random.h"
#include "planner/screen.h"
#include "tests/planner/tangle.h"

namespace reprise::planner {
namespace {

std::vector<OpId> BaseOf(const StepGraph& graph) {
  std::vector<OpId> execs(graph.op_count());
  for (OpId o = 0; o < graph.op_count(); ++o) execs[o] = o;
  return execs;
}

// The memory of every exec, life by life.
std::vector<int64_t> BytesOf(const StepGraph& graph,
                             const std::vector<OpId>& execs) {
  const size_t count = execs.size();
  std::vector<int64_t> bytes(count, graph.static_bytes);
  const std::set<StorageId> required(graph.required.begin(),
                                     graph.required.end());
  for (size_t at = 0; at < count; ++at) {
    const Op& op = graph.ops[execs[at]];
    bytes[at] += op.workspace_bytes;
    for (const StorageId s : op.writes) {
      size_t end = at;
      size_t next = at + 1;
      for (; next < count && execs[next] != execs[at]; ++next) {
        const auto& reads = graph.ops[execs[next]].reads;
        if (std::count(reads.begin(), reads.end(), s) > 0) end = next;
      }
      if (next == count && required.count(s) > 0) end = count - 1;
      for (size_t i = at; i <= end; ++i) bytes[i] += graph.storages[s].bytes;
    }
  }
  return bytes;
}

TEST(FreeOrderTest, CountsTheMemoryOfEveryExecAfterAnyChanges) {
  Random random(5);
  int changes = 0;
  for (int i = 0; i < 60; ++i) {
    const StepGraph graph = Tangle(random, 40);
    ASSERT_TRUE(Validate(graph).ok());
    const Problem problem = MakeProblem(graph, {});
    ASSERT_TRUE(FreeOrder::Applies(problem));
    const int64_t budget = problem.base.peak_bytes * 2 / 3;
    FreeOrder list(problem, budget);
    ASSERT_TRUE(list.Assign(BaseOf(graph)));
    for (int step = 0; step < 80; ++step) {
      const std::vector<OpId> before = list.Execs();
      bool changed = false;
      switch (random.Below(3)) {
        case 0:
          changed =
              list.Shift(random.Below(list.size()), random.Below(list.size()));
          break;
        case 1:
          changed = list.Remake(random.Below(list.size()), random.Below(60), 30,
                                random);
          break;
        default:
          changed = list.Remove(random.Below(list.size()));
      }
      if (!changed) {
        ASSERT_EQ(list.Execs(), before);
        continue;
      }
      ++changes;
      if (random.Percent(30)) {
        list.Undo();
        ASSERT_EQ(list.Execs(), before);
      }

      const std::vector<OpId> now = list.Execs();
      const std::vector<int64_t> bytes = BytesOf(graph, now);

      FreeOrder fresh(problem, budget);
      ASSERT_TRUE(fresh.Assign(now)) << "graph " << i << " step " << step;
      for (int32_t at = 0; at < list.size(); ++at) {
        ASSERT_EQ(list.BytesAt(at), bytes[at]) << "graph " << i << " at " << at;
        ASSERT_EQ(fresh.BytesAt(at), bytes[at]);
      }
      ASSERT_EQ(list.Over() == 0,
                *std::max_element(bytes.begin(), bytes.end()) <= budget);
    }
  }
  EXPECT_GT(changes, 1500);
}

TEST(FreeOrderTest, RefusesListsInWhichAnInputIsNotThere) {
  Random random(6);
  const StepGraph graph = Tangle(random, 30);
  const Problem problem = MakeProblem(graph, {});
  FreeOrder list(problem, problem.base.peak_bytes);
  std::vector<OpId> execs = BaseOf(graph);
  std::reverse(execs.begin(), execs.end());

  EXPECT_FALSE(list.Assign(execs));
}

TEST(FreeOrderTest, LeavesInPlaceOpsToOthers) {
  StepGraph graph;
  graph.storages = {{.bytes = 1}};
  graph.ops = {{.writes = {0}}, {.reads = {0}, .mutates = {0}}};

  EXPECT_FALSE(FreeOrder::Applies(MakeProblem(graph, {})));
}

TEST(SqueezeTest, APebblingInBaseOrderIsAScheduleWithinItsBudget) {
  Random random(7);
  int pebbled = 0;
  for (int i = 0; i < 40; ++i) {
    const StepGraph graph = PureTangle(random, 60);
    const Problem problem = MakeProblem(graph, {});
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t budget =
        least + (problem.base.peak_bytes - least) * random.Below(100) / 100;
    const std::function<bool()> never;
    Effort effort(int64_t{1} << 60, never);
    Pebbler pebbler(problem, budget, /*seed=*/3);
    std::vector<OpId> pebbling;
    for (int k = 0; k < 3 && pebbling.empty(); ++k) {
      pebbling = pebbler.Search(400'000, effort);
    }
    if (pebbling.empty()) continue;
    ++pebbled;
    const std::vector<int64_t> bytes = BytesOf(graph, pebbling);
    EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()), budget);

    const std::vector<OpId> execs = InBaseOrder(problem, pebbling, effort);

    const auto evaluation = Evaluate(
        graph, WithFrees(graph, execs, FreePolicy::kEager), Capabilities{});
    ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
    EXPECT_LE(evaluation->peak_bytes, budget) << "graph " << i;
  }
  EXPECT_GT(pebbled, 20);
}

}  // namespace
}  // namespace reprise::planner
