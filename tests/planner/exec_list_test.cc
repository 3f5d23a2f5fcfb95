// SPDX-License-Identifier: Apache-2.0
#include "planner/model/exec_list.h"

#include <gtest/gtest.h>

#include "planner/model/score.h"
#include "planner/search/local_search.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

using Node = ExecList::Node;

// Makes one random change. Returns false if it picked one that is not allowed.
bool Change(ExecList& list, const Problem& problem, Random& random) {
  const std::vector<Node>& reruns = list.reruns();
  if (!reruns.empty() && random.Percent(40)) {
    list.Erase(reruns[random.Below(reruns.size())]);
    return true;
  }
  const OpId op = random.Below(problem.op_count);
  const Node next = list.Move(op, 1 + random.Below(problem.op_count));
  if (!list.MayInsert(op, next)) return false;
  list.InsertBefore(next, op);
  return true;
}

class ExecListTest : public testing::TestWithParam<int> {};

TEST_P(ExecListTest, AgreesWithTheEvaluatorAfterAnyChanges) {
  Random random(11);
  int valid = 0;
  for (int i = 0; i < 300; ++i) {
    const bool large = i % 10 == 0;  // large lists have several blocks
    const StepGraph graph = RandomGraph(random, large ? 300 : 14);
    const Capabilities capabilities = GetParam() == 0 ? Capabilities{}
                                      : GetParam() == 1
                                          ? TapeCapabilities()
                                          : RandomCapabilities(random);
    const Problem problem = MakeProblem(graph, capabilities);
    ExecList list(problem);
    std::vector<OpId> execs(problem.op_count);
    for (OpId o = 0; o < problem.op_count; ++o) execs[o] = o;
    list.Assign(execs);
    for (int step = 0; step < 60; ++step) {
      const size_t mark = list.Mark();
      const std::vector<OpId> before = list.Execs();
      const int changes = 1 + random.Below(large ? 60 : 4);
      for (int c = 0; c < changes; ++c) Change(list, problem, random);
      const std::vector<OpId> after = list.Execs();
      if (random.Percent(40) || (!list.valid() && random.Percent(70))) {
        list.UndoTo(mark);
        ASSERT_EQ(list.Execs(), before) << "graph " << i;
      }

      const std::vector<OpId> now = list.Execs();
      const auto evaluation = Evaluate(
          graph, WithFrees(graph, now, capabilities.free_policy), capabilities);

      ASSERT_EQ(evaluation.ok(), list.valid())
          << "graph " << i << ": " << evaluation.status().message();
      if (!evaluation.ok()) continue;
      ++valid;
      ASSERT_EQ(evaluation->peak_bytes, list.PeakBytes()) << "graph " << i;
      ASSERT_EQ(evaluation->time_ns, list.time_ns()) << "graph " << i;
      ASSERT_EQ(list.BytesAt(list.PeakNode()), list.PeakBytes());
      ExecList fresh(problem);
      fresh.Assign(now);
      ASSERT_EQ(fresh.PeakBytes(), list.PeakBytes());
      ASSERT_EQ(fresh.time_ns(), list.time_ns());
    }
  }
  EXPECT_GT(valid, 3000);
}

INSTANTIATE_TEST_SUITE_P(Executors, ExecListTest, testing::Values(0, 1, 2));

}  // namespace
}  // namespace reprise::planner
