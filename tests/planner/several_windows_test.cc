// SPDX-License-Identifier: Apache-2.0
//
// The bound of several windows against brute force. The values of all columns
// are read off optimal schedules, and every row of the program must hold for
// them: this finds a wrong row sooner than comparing bounds, and needs no
// solver. See oracle_graphs.h to test more graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "planner/bounds/certify_tree.h"
#include "planner/bounds/lp.h"
#include "planner/bounds/screen.h"
#include "planner/verify/program.h"
#include "tests/planner/oracle.h"
#include "tests/planner/oracle_graphs.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

int GraphCount(int share) {
  return std::max(1, OracleNumber("REPRISE_ORACLE_GRAPHS", 800) / share);
}

Capabilities CapabilitiesOf(int i, Random& random) {
  if (i % 3 == 0) return {};
  return i % 3 == 1 ? TapeCapabilities() : RandomCapabilities(random);
}

int64_t TightBudget(const Problem& problem, Random& random) {
  const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
  const int64_t most = std::max(problem.base.peak_bytes, least + 1);
  return std::max<int64_t>(0, least + random.Below(most - least));
}

// Returns one to four windows.
std::vector<OpId> RandomWindows(const Problem& problem, Random& random) {
  std::vector<OpId> windows = {
      static_cast<OpId>(random.Below(problem.op_count))};
  for (int i = random.Below(4); i > 0; --i) {
    const OpId at = random.Below(problem.op_count);
    if (std::count(windows.begin(), windows.end(), at) == 0) {
      windows.push_back(at);
    }
  }
  std::sort(windows.begin(), windows.end());
  return windows;
}

// Random windows of a random step of at most `ops` ops, at a tight budget.
struct Sample {
  Sample(int i, Random& random, int ops)
      : graph(RandomGraph(random, ops)),
        capabilities(CapabilitiesOf(i, random)),
        problem(MakeProblem(graph, capabilities)),
        budget(TightBudget(problem, random)),
        windows(RandomWindows(problem, random)),
        facts(verify::ReadFacts(graph, ExecutorOf(capabilities))) {}
  Sample(const Sample&) = delete;  // the problem refers to the graph

  const StepGraph graph;
  const Capabilities capabilities;
  const Problem problem;
  const int64_t budget;
  const std::vector<OpId> windows;
  const StatusOr<verify::Facts> facts;
};

// Returns the values that the program's columns have in a schedule.
std::vector<double> ReadOff(const Problem& problem,
                            const verify::Program& program,
                            const std::vector<OpId>& windows,
                            const Schedule& schedule) {
  std::vector<double> x(program.column_count(), 0);
  const Versions& versions = problem.versions;
  std::vector<ValueId> present(problem.bytes.size(), kNoValue);
  std::vector<uint8_t> ran(problem.op_count, 0);
  int segment = -1;
  for (const Entry& entry : schedule) {
    if (entry.kind == Entry::Kind::kFree) {
      present[entry.id] = kNoValue;
      continue;
    }
    const OpId o = entry.id;
    if (ran[o] == 0) {
      const auto window = std::find(windows.begin(), windows.end(), o);
      if (window != windows.end()) {
        segment = static_cast<int>(window - windows.begin());
        for (const ValueId v : present) {
          if (v == kNoValue) continue;
          const int32_t column = program.ColumnOfS(segment, v);
          if (column >= 0) x[column] = 1;
        }
      }
    } else {
      if (segment >= 0) {
        const int32_t again = program.ColumnOfR(segment, o);
        if (again >= 0) x[again] = 1;
      }
    }
    ran[o] = 1;
    for (const ValueId v : versions.Make(o)) present[versions.storage[v]] = v;
  }
  for (int k = static_cast<int>(windows.size()); k-- > 0;) {
    for (OpId o = 0; o < problem.op_count; ++o) {
      const int32_t later = program.ColumnOfA(k, o);
      const int32_t again = program.ColumnOfR(k, o);
      if (later < 0 || later == again) continue;
      if (again >= 0 && x[again] == 1) x[later] = 1;
      if (k + 1 == static_cast<int>(windows.size())) continue;
      const int32_t next = program.ColumnOfA(k + 1, o);
      if (next >= 0 && x[next] == 1) x[later] = 1;
    }
  }
  for (int k = 0; k + 1 < static_cast<int>(windows.size()); ++k) {
    for (ValueId v = 0; v < versions.value_count(); ++v) {
      const int32_t stays = program.ColumnOfP(k, v);
      if (stays < 0) continue;
      // A value without a column at the next window is always kept there.
      const int32_t next = program.ColumnOfS(k + 1, v);
      const int32_t again = program.ColumnOfR(k, versions.maker[v]);
      x[stays] = (next < 0 || x[next] == 1) && x[again] == 0 ? 1 : 0;
    }
  }
  return x;
}

void ExpectEveryRowHolds(const verify::Program& program,
                         const std::vector<double>& x) {
  for (int row = 0; row < program.row_count(); ++row) {
    double sum = 0;
    for (const verify::Program::Entry& entry : program.Row(row)) {
      sum += static_cast<double>(entry.value) * x[entry.column];
    }
    ASSERT_GE(sum, static_cast<double>(program.Least(row))) << "row " << row;
  }
}

// Returns all rows inside segments.
std::vector<verify::InsideRow> AllInsideRows(const std::vector<OpId>& windows) {
  std::vector<verify::InsideRow> rows;
  for (size_t k = 0; k + 1 < windows.size(); ++k) {
    for (OpId o = 0; o < windows[k + 1]; ++o) {
      rows.push_back({.segment = static_cast<int32_t>(k), .op = o});
    }
  }
  return rows;
}

// The oracle's optimum obeys every row, so the optimum of the program is a
// lower bound.
TEST(SeveralWindowsTest, EveryRowHoldsForOptimalSchedules) {
  Random random(21);
  int checked = 0, inside = 0;
  for (int i = 0; i < GraphCount(1); ++i) {
    const Sample on(i, random, 8);
    const auto& [graph, capabilities, problem, budget, windows, facts] = on;
    ASSERT_TRUE(facts.ok());
    SCOPED_TRACE("graph " + std::to_string(i) + " windows " +
                 testing::PrintToString(windows));

    const bool is_inside = i % 2 == 0;
    const auto rows =
        is_inside ? AllInsideRows(windows) : std::vector<verify::InsideRow>();
    const auto program =
        verify::Program::Build(*facts, budget, windows, is_inside, rows);
    ASSERT_TRUE(program.ok());
    inside += !rows.empty();
    const auto best = BestSchedule(graph, capabilities, budget);

    if (!best.has_value()) continue;
    ++checked;
    ExpectEveryRowHolds(*program,
                        ReadOff(problem, *program, windows, best->schedule));
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(checked, GraphCount(1) / 3);
  EXPECT_GT(inside, GraphCount(1) / 5);
}

constexpr int64_t kNothing = verify::Program::kNothing;

TEST(SeveralWindowsTest, TheBoundIsNeverAboveTheOptimum) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  Random random(22);
  int positive = 0, refused = 0;
  for (int i = 0; i < GraphCount(4); ++i) {
    const Sample on(i, random, 8);
    const auto& [graph, capabilities, problem, budget, windows, facts] = on;
    ASSERT_TRUE(facts.ok());
    SCOPED_TRACE("graph " + std::to_string(i) + " windows " +
                 testing::PrintToString(windows));

    Refuter refuter(problem, *facts, budget, windows, /*inside=*/i % 2 == 0);
    const Refutation root =
        refuter.Cheaper(kNothing, /*to_optimum=*/false, {.root_only = true});
    const Refutation whole =
        refuter.Cheaper(kNothing, /*to_optimum=*/true, {.most_leaves = 50});
    const auto best = BestSchedule(graph, capabilities, budget);

    if (!best.has_value()) {
      refused += whole.proven_ns() == kNothing;
      continue;
    }
    const int64_t optimum = best->time_ns - problem.base.time_ns;
    EXPECT_LE(root.proven_ns(), optimum);
    EXPECT_LE(whole.proven_ns(), optimum);
    EXPECT_GE(whole.proven_ns(), root.proven_ns());
    positive += whole.proven_ns() > 0;
    // Given the optimum as the best plan so far, it must not claim more either.
    EXPECT_LE(refuter.Cheaper(optimum, true, {.most_leaves = 50}).proven_ns(),
              optimum);
  }
  EXPECT_GT(positive, GraphCount(4) / 20);
  EXPECT_GT(refused, 0);
}

TEST(SeveralWindowsTest, TreesUnderDifferentGuessesFindTheSameOptimum) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  Random random(24);
  int compared = 0, refuted = 0;
  for (int i = 0; i < GraphCount(4); ++i) {
    const Sample on(i, random, 8);
    ASSERT_TRUE(on.facts.ok());
    SCOPED_TRACE("graph " + std::to_string(i));
    const auto under = [&](int64_t guess_ns) {
      return Refuter(on.problem, *on.facts, on.budget, on.windows)
          .Cheaper(guess_ns, /*to_optimum=*/true, {});
    };

    const Refutation whole = under(kNothing);
    ASSERT_TRUE(whole.is_proven());
    if (whole.added_ns == kNothing) continue;
    const Refutation above = under(2 * whole.added_ns + 3);
    const Refutation at = under(whole.added_ns);

    // A guess above the optimum has a solution; the optimum itself has none
    // below it.
    EXPECT_TRUE(above.is_proven());
    EXPECT_EQ(above.added_ns, whole.added_ns);
    if (whole.added_ns > 0) {
      EXPECT_EQ(above.keep_sets.size(), on.windows.size());
    }
    EXPECT_TRUE(at.is_proven());
    EXPECT_TRUE(at.keep_sets.empty());
    ++compared;
    refuted += whole.added_ns > 0;
  }
  EXPECT_GT(compared, GraphCount(4) / 3);
  EXPECT_GT(refuted, GraphCount(4) / 20);
}

// Lets two threads join every piece of work that is split, until it is done.
class TwoHelpers : public Exchange {
 public:
  void Offer(const Archive::Point&) override {}
  void OfferBound(int64_t) override {}
  std::optional<Archive::Point> Faster(int64_t) override {
    return std::nullopt;
  }
  int64_t BoundNs() override { return 0; }
  void Together(const std::function<void()>& mine,
                const std::function<void()>& help) override {
    std::atomic<bool> done = false;
    const auto come_by = [&] {
      while (!done) help();
    };
    std::thread first(come_by), second(come_by);
    mine();
    done = true;
    first.join();
    second.join();
  }
};

TEST(SeveralWindowsTest, ATreeThatThreadsGrowProvesWhatOneThreadProves) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  Random random(25);
  TwoHelpers helpers;
  int trees = 0, optima = 0;
  for (int i = 0; i < GraphCount(4); ++i) {
    const Sample on(i, random, 30);
    ASSERT_TRUE(on.facts.ok());
    SCOPED_TRACE("graph " + std::to_string(i));
    const auto under = [&](int64_t claim_ns, bool to_optimum,
                           Exchange* exchange) {
      return Refuter(on.problem, *on.facts, on.budget, on.windows)
          .Cheaper(claim_ns, to_optimum, {.exchange = exchange});
    };

    const Refutation alone = under(1'000'000, true, nullptr);
    const Refutation together = under(1'000'000, true, &helpers);
    const Refutation at = under(alone.added_ns, false, &helpers);
    const Refutation above = under(alone.added_ns + 1, false, &helpers);

    EXPECT_EQ(together.outcome, alone.outcome);
    EXPECT_EQ(together.added_ns, alone.added_ns);
    if (alone.outcome != Refutation::Outcome::kProven) continue;
    EXPECT_EQ(at.outcome, Refutation::Outcome::kProven);
    if (!alone.keep_sets.empty()) {
      EXPECT_EQ(above.outcome, Refutation::Outcome::kCheaper);
      ++optima;
    }
    // A tree whose claim was lowered during the search is a certificate, too.
    for (const Refutation* found : {&alone, &together, &at}) {
      const verify::Certificate certificate{.method = verify::Method::kWindows,
                                            .budget_bytes = on.budget,
                                            .added_ns = alone.added_ns,
                                            .at = on.windows,
                                            .tree = found->proof.tree};
      const Status accepted = verify::CheckCertificate(*on.facts, certificate);
      EXPECT_TRUE(accepted.ok()) << accepted.message();
    }
    trees += at.proof.tree.size() > 1;
  }
  EXPECT_GT(trees, GraphCount(4) / 40);
  EXPECT_GT(optima, GraphCount(4) / 4);
}

TEST(SeveralWindowsTest, SeveralWindowsProveMoreThanEachOfThem) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  // At two places there is no room for one of x and y (10 bytes each, 5 and 7
  // ns to recompute), and both are needed after each. One window proves one
  // re-run, two windows prove one in each segment.
  StepGraph graph;
  graph.storages = {{.bytes = 10}, {.bytes = 10}, {.bytes = 20},
                    {.bytes = 1},  {.bytes = 20}, {.bytes = 1}};
  graph.ops = {{.time_ns = 5, .writes = {0}},
               {.time_ns = 7, .writes = {1}},
               {.time_ns = 1, .writes = {2}},
               {.time_ns = 1, .reads = {0, 1}, .writes = {3}},
               {.time_ns = 1, .writes = {4}},
               {.time_ns = 1, .reads = {0, 1}, .writes = {5}}};
  const Problem problem = MakeProblem(graph, {});
  const auto facts = verify::ReadFacts(graph, {});
  ASSERT_TRUE(facts.ok());
  const auto bound = [&](std::vector<OpId> windows) {
    return Refuter(problem, *facts, 30, std::move(windows))
        .Cheaper(kNothing, /*to_optimum=*/true, {})
        .proven_ns();
  };

  EXPECT_EQ(bound({2}), 5);
  EXPECT_EQ(bound({4}), 5);
  EXPECT_EQ(bound({2, 4}), 10);
}

TEST(SeveralWindowsTest, TheRoomIsUsedInWholeValues) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  // Four values of 10 bytes, each recomputed in 8 ns, and one of 1 byte, while w
  // (5) runs in 30 bytes: there is room for two of the large ones. With fractions
  // of values, 0.4 less runs again.
  StepGraph graph;
  graph.storages.assign(4, {.bytes = 10});
  graph.storages.insert(graph.storages.end(), {{.bytes = 1}, {.bytes = 5}});
  for (StorageId s = 0; s < 5; ++s) {
    graph.ops.push_back({.time_ns = 8, .writes = {s}});
  }
  graph.ops.push_back({.time_ns = 1, .writes = {5}});
  for (StorageId s = 0; s < 5; ++s) {
    graph.ops.push_back({.time_ns = 1, .reads = {s}});
  }
  const Problem problem = MakeProblem(graph, {});
  const auto facts = verify::ReadFacts(graph, {});
  ASSERT_TRUE(facts.ok());

  const int64_t cut = WindowBound(problem, 5).Solve(30).added_ns;
  const Refutation root =
      Refuter(problem, *facts, 30, {5})
          .Cheaper(kNothing, /*to_optimum=*/false, {.root_only = true});

  EXPECT_EQ(cut, 13);
  EXPECT_EQ(root.proven_ns(), 16);
  EXPECT_EQ(BestSchedule(graph, {}, 30)->time_ns, problem.base.time_ns + 16);
}

TEST(SeveralWindowsTest, WhatStaysThroughASegmentIsThereWhileItsReRunsAre) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  // i (4 bytes) makes a (16) and b (8); p (8) makes q (1); r (1) needs a, b and
  // q. At p there is no room for the 32 bytes of a, b and p. Both windows have
  // room for the rest, and so has r: 16 + 8 + 1 + 1 = 26. But while a is
  // recomputed before r, the step holds i, a, b and q: 4 + 16 + 8 + 1 = 29.
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 16}, {.bytes = 8},
                    {.bytes = 8}, {.bytes = 1},  {.bytes = 1}};
  graph.ops = {
      {.time_ns = 0, .kind = OpKind::kOnce, .writes = {0}},
      {.time_ns = 1, .reads = {0}, .writes = {1}},
      {.time_ns = 1, .kind = OpKind::kOnce, .reads = {0}, .writes = {2}},
      {.time_ns = 1, .kind = OpKind::kOnce, .writes = {3}},
      {.time_ns = 1, .kind = OpKind::kOnce, .reads = {3}, .writes = {4}},
      {.time_ns = 1, .reads = {1, 2, 4}, .writes = {5}}};
  const Problem problem = MakeProblem(graph, {});
  const auto facts = verify::ReadFacts(graph, {});
  ASSERT_TRUE(facts.ok());
  const auto bound = [&](int64_t budget, bool inside) {
    return Refuter(problem, *facts, budget, {3, 4, 5}, inside)
        .Cheaper(kNothing, /*to_optimum=*/true, {})
        .proven_ns();
  };

  EXPECT_EQ(bound(28, false), 1);
  EXPECT_EQ(bound(28, true), kNothing);
  EXPECT_EQ(bound(29, true), 1);
  EXPECT_FALSE(BestSchedule(graph, {}, 28).has_value());
  EXPECT_EQ(BestSchedule(graph, {}, 29)->time_ns, problem.base.time_ns + 1);
}

}  // namespace
}  // namespace reprise::planner
