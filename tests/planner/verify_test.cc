// SPDX-License-Identifier: Apache-2.0
//
// The verifier (planner/verify) accepts what searches prove. It accepts nothing
// that brute force refutes, and no changed certificate or schedule.
#include "planner/verify/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "planner/bounds/certify.h"
#include "planner/bounds/certify_tree.h"
#include "planner/bounds/lp.h"
#include "planner/bounds/nested_windows.h"
#include "planner/bounds/screen.h"
#include "planner/bounds/window_bound.h"
#include "planner/planner.h"
#include "tests/planner/oracle.h"
#include "tests/planner/oracle_graphs.h"
#include "tests/planner/random_graph.h"

namespace reprise::planner {
namespace {

std::vector<int64_t> EntriesOf(const Schedule& schedule) {
  std::vector<int64_t> entries;
  for (const Entry& entry : schedule) {
    entries.push_back(entry.kind == Entry::Kind::kExec ? entry.id
                                                       : -entry.id - 1);
  }
  return entries;
}

// The last sets of executors are the tape with replay points at some ops only,
// others with replay windows, and the tape with these.
constexpr int kTapeAtPoints = 3, kInWindows = 4;

bool IsLimitedTape(int set) {
  return set == kTapeAtPoints || set == kInWindows + 1;
}

StepGraph GraphFor(int set, Random& random, int most_ops) {
  StepGraph graph = RandomGraph(random, most_ops);
  if (set == kTapeAtPoints) LimitReplayPoints(graph, random);
  if (set >= kInWindows) LimitReplays(graph, random);
  return graph;
}

// A random graph, an executor and a tight budget, as both the planner and the
// verifier read them.
struct Case {
  explicit Case(int set, int number, int most_ops = 9)
      : random(OracleRandom(81, number)),
        graph(GraphFor(set, random, most_ops)),
        capabilities(set == 0       ? Capabilities{}
                     : set % 2 == 1 ? TapeCapabilities()
                                    : RandomCapabilities(random)),
        problem(MakeProblem(graph, capabilities)),
        facts(*verify::ReadFacts(graph, ExecutorOf(problem.capabilities))) {
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t most = std::max(problem.base.peak_bytes, least + 1);
    budget = std::max<int64_t>(0, least - 1 + random.Below(most - least + 1));
  }
  Case(const Case&) = delete;

  std::optional<int64_t> Optimum() const {
    const auto best = BestSchedule(graph, capabilities, budget);
    if (!best.has_value()) return std::nullopt;
    return best->time_ns - problem.base.time_ns;
  }

  Random random;
  StepGraph graph;
  Capabilities capabilities;
  Problem problem;
  verify::Facts facts;
  int64_t budget = 0;
};

// Expects that a certificate which the verifier accepts claims no more than
// brute force allows.
void ExpectTrue(const Case& on, const verify::Certificate& claim) {
  if (!verify::CheckCertificate(on.facts, claim).ok()) return;
  if (claim.refuses) {
    EXPECT_FALSE(BestSchedule(on.graph, on.capabilities, claim.least_bytes - 1)
                     .has_value());
    return;
  }
  const auto best = BestSchedule(on.graph, on.capabilities, claim.budget_bytes);
  if (best.has_value()) {
    EXPECT_LE(claim.added_ns, best->time_ns - on.problem.base.time_ns);
  }
}

class VerifyTest : public testing::TestWithParam<int> {};

TEST_P(VerifyTest, WhatThePlannerSaysIsCheckedAndTrue) {
  int bounds = 0, refusals = 0, by_word = 0;
  for (const int number : OracleGraphs(400)) {
    const Case on(GetParam(), number);
    SCOPED_TRACE("graph " + std::to_string(number));
    const auto plan = MakePlan(on.graph, {.budget_bytes = on.budget,
                                          .capabilities = on.capabilities,
                                          .target_gap = 0,
                                          .max_ticks = 300'000});
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->proven_optimal,
              plan->is_optimal && plan->bound_proof == BoundProof::kChecked);
    if (plan->feasible) {
      const auto walked = verify::Walk(on.facts, EntriesOf(plan->schedule));
      ASSERT_TRUE(walked.ok()) << walked.status().message();
      EXPECT_EQ(walked->peak_bytes, plan->evaluation.peak_bytes);
      EXPECT_EQ(walked->time_ns, plan->evaluation.time_ns);
    }
    by_word += plan->feasible && plan->bound_proof == BoundProof::kSolver;
    if (plan->certificate.method == verify::Method::kNone) continue;
    EXPECT_EQ(verify::CheckCertificate(on.facts, plan->certificate),
              OkStatus());
    ExpectTrue(on, plan->certificate);
    const bool checked = plan->bound_proof == BoundProof::kChecked;
    bounds += checked && !plan->certificate.refuses;
    refusals += checked && plan->certificate.refuses;
  }
  // The tape re-runs ops in the backward only: it keeps everything or is
  // refused for most of these steps, so few bounds are above 0; fewer still
  // where it has few replay points or windows.
  const bool few = IsLimitedTape(GetParam());
  EXPECT_GT(bounds, few ? 10 : GetParam() == 1 ? 25 : 50);
  // Windows of a reduced graph sometimes prove slightly less in the original.
  EXPECT_LE(by_word, bounds / 10);
  EXPECT_GT(refusals, 5);
}

TEST_P(VerifyTest, WalksAsTheEvaluatorDoesWhateverTheSchedule) {
  int valid = 0, wrong = 0;
  for (int number = 0; number < 300; ++number) {
    Case on(GetParam(), number);
    Schedule schedule = BaseSchedule(on.graph, on.capabilities.free_policy);
    const auto best = BestSchedule(on.graph, on.capabilities, on.budget);
    if (best.has_value()) schedule = best->schedule;
    for (int mutant = 0; mutant < 12; ++mutant) {
      Schedule changed = schedule;
      for (int change = on.random.Below(3); change > 0 && !changed.empty();
           --change) {
        const size_t at = on.random.Below(static_cast<int>(changed.size()));
        const Entry other =
            on.random.Percent(50)
                ? Exec(on.random.Below(on.graph.op_count()))
                : Free(on.random.Below(on.graph.storage_count()));
        if (on.random.Percent(40)) {
          changed.insert(changed.begin() + static_cast<int64_t>(at), other);
        } else if (on.random.Percent(50)) {
          changed.erase(changed.begin() + static_cast<int64_t>(at));
        } else {
          changed[at] = other;
        }
      }
      const auto evaluated = Evaluate(on.graph, changed, on.capabilities);
      const auto walked = verify::Walk(on.facts, EntriesOf(changed));
      ASSERT_EQ(walked.ok(), evaluated.ok())
          << "graph " << number << ": "
          << (walked.ok() ? evaluated : evaluated).status().message();
      ++(walked.ok() ? valid : wrong);
      if (!walked.ok()) continue;
      EXPECT_EQ(walked->peak_bytes, evaluated->peak_bytes);
      EXPECT_EQ(walked->time_ns, evaluated->time_ns);
    }
  }
  EXPECT_GT(valid, 300);
  EXPECT_GT(wrong, 300);
}

// Builds the best tree of some windows for a claim one nanosecond too high:
// whatever the solver proposes, the verifier must not accept it.
TEST_P(VerifyTest, NoTreeProvesMoreThanIsTrue) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  int tight = 0, narrowing = 0;
  for (const int number : OracleGraphs(250)) {
    Case on(GetParam(), number, 8);
    SCOPED_TRACE("graph " + std::to_string(number));
    ProofSource source{.inside = on.random.Percent(50)};
    for (OpId o = 0; o < on.graph.op_count(); ++o) {
      if (on.random.Percent(40)) source.windows.push_back(o);
    }
    const std::optional<int64_t> optimum = on.Optimum();
    if (source.windows.empty()) continue;
    if (!optimum.has_value()) continue;
    const CertifyLimits limits{.most_leaves = 200};
    for (const int64_t more : {0, 1}) {
      const verify::Certificate claim =
          CertifyProgram(on.facts, on.budget, source, *optimum + more, limits);
      if (!verify::CheckCertificate(on.facts, claim).ok()) continue;
      EXPECT_LE(claim.added_ns, *optimum);
      for (size_t i = 0; i < claim.tree.size(); ++i) {
        if (claim.tree[i].branch >= 0) continue;
        narrowing += claim.tree[i].narrows;
        // A leaf that is wrongly marked as narrowing lacks the node that it
        // narrows; one that is wrongly unmarked is a leaf followed by another
        // node.
        verify::Certificate mutant = claim;
        mutant.tree[i].narrows = !claim.tree[i].narrows;
        EXPECT_FALSE(verify::CheckCertificate(on.facts, mutant).ok());
      }
      tight += more == 0 && claim.added_ns == *optimum && *optimum > 0;
    }
    const verify::Certificate refusal =
        CertifyImpossible(on.facts, on.budget + 1, source, limits);
    EXPECT_EQ(refusal.method, verify::Method::kNone);
  }
  const bool few = IsLimitedTape(GetParam());
  EXPECT_GT(tight, few ? 2 : GetParam() == 1 ? 5 : 10);
  EXPECT_GE(narrowing, few ? 0 : 1);
}

// Changes every number of a certificate in turn: if it is still accepted, it
// must still be true. Claims far above the proof and trees without one of their
// nodes must be rejected.
TEST_P(VerifyTest, AChangedCertificateIsRejectedOrStillTrue) {
  int changed = 0, rejected = 0, trees = 0;
  for (const int number : OracleGraphs(1000)) {
    Case on(GetParam(), number, 8);
    SCOPED_TRACE("graph " + std::to_string(number));
    const auto plan = MakePlan(on.graph, {.budget_bytes = on.budget,
                                          .capabilities = on.capabilities,
                                          .target_gap = 0,
                                          .max_ticks = 100'000});
    ASSERT_TRUE(plan.ok());
    const verify::Certificate& claim = plan->certificate;
    if (claim.method == verify::Method::kNone) continue;
    const auto expect = [&](const verify::Certificate& mutant) {
      ++changed;
      rejected += !verify::CheckCertificate(on.facts, mutant).ok();
      ExpectTrue(on, mutant);
    };
    verify::Certificate mutant = claim;
    mutant.added_ns += 1 + on.problem.base.time_ns;
    mutant.least_bytes += 1 + on.problem.base.peak_bytes;
    EXPECT_FALSE(verify::CheckCertificate(on.facts, mutant).ok());
    for (size_t w = 0; w < claim.at.size(); ++w) {
      mutant = claim;
      mutant.at[w] = on.random.Below(on.graph.op_count() + 2) - 1;
      if (mutant.at != claim.at) expect(mutant);
    }
    trees += claim.tree.size() > 1;
    for (size_t i = 0; i < claim.tree.size(); ++i) {
      mutant = claim;
      mutant.tree.erase(mutant.tree.begin() + static_cast<int64_t>(i));
      if (claim.tree[i].narrows) {
        expect(mutant);  // the leaf behind it may prove the claim alone
      } else {
        EXPECT_FALSE(verify::CheckCertificate(on.facts, mutant).ok());
      }
      if (claim.tree[i].branch >= 0) {
        mutant = claim;
        mutant.tree[i].branch = on.random.Below(40);
        if (mutant.tree != claim.tree) expect(mutant);
        continue;
      }
      mutant = claim;
      mutant.tree[i].impossible = !claim.tree[i].impossible;
      expect(mutant);
      if (claim.tree[i].price > 0) {
        mutant = claim;
        mutant.tree[i].price *= 2;
        expect(mutant);
        mutant.tree[i].price = claim.tree[i].price / 3;
        expect(mutant);
      }
      for (size_t y = 0; y < claim.tree[i].multipliers.size(); ++y) {
        mutant = claim;
        mutant.tree[i].multipliers[y].value *= 3;
        expect(mutant);
        mutant = claim;
        mutant.tree[i].multipliers[y].value = 0;
        expect(mutant);
        mutant = claim;
        mutant.tree[i].multipliers[y].row += 1;
        expect(mutant);
      }
    }
  }
  EXPECT_GT(trees, GetParam() % 2 == 1 ? 2 : 10);
  EXPECT_GT(rejected, changed / 2) << "of " << changed;
}

// The prices of nested windows, also after every number was changed.
TEST_P(VerifyTest, NestedWindowsProveOnlyWhatIsTrue) {
  int proven = 0, more = 0, changed = 0, rejected = 0;
  for (const int number : OracleGraphs(400)) {
    Case on(GetParam(), number);
    SCOPED_TRACE("graph " + std::to_string(number));
    verify::Certificate claim{.method = verify::Method::kNested,
                              .budget_bytes = on.budget};
    double price = 1;
    int64_t alone_ns = 0;
    for (OpId o = 0; o < on.graph.op_count(); ++o) {
      if (!on.random.Percent(40)) continue;
      claim.at.push_back(o);
      const WindowResult single = WindowBound(on.problem, o).Solve(on.budget);
      alone_ns = std::max(alone_ns, single.added_ns);
      if (single.has_rich_set) price = PriceOf(single);
    }
    if (claim.at.size() < 2) continue;
    const NestedWindows::Proof proof =
        NestedWindows(on.problem, claim.at)
            .Solve(on.budget, price, 1'000'000, {});
    if (proof.added_ns <= 0) continue;
    claim.added_ns = proof.added_ns;
    claim.tree = {{.shift = proof.shift, .multipliers = proof.prices}};
    EXPECT_EQ(verify::CheckCertificate(on.facts, claim), OkStatus());
    ExpectTrue(on, claim);
    ++proven;
    more += proof.added_ns > alone_ns;

    const auto expect = [&](const verify::Certificate& mutant) {
      ++changed;
      rejected += !verify::CheckCertificate(on.facts, mutant).ok();
      ExpectTrue(on, mutant);
    };
    verify::Certificate mutant = claim;
    ++mutant.added_ns;
    EXPECT_FALSE(verify::CheckCertificate(on.facts, mutant).ok());
    mutant = claim;
    std::swap(mutant.at.front(), mutant.at.back());
    EXPECT_FALSE(verify::CheckCertificate(on.facts, mutant).ok());
    mutant = claim;
    mutant.refuses = true;
    EXPECT_FALSE(verify::CheckCertificate(on.facts, mutant).ok());
    mutant = claim;
    mutant.tree[0].impossible = true;
    EXPECT_FALSE(verify::CheckCertificate(on.facts, mutant).ok());
    mutant = claim;
    mutant.tree[0].multipliers[0].row = static_cast<int32_t>(claim.at.size());
    EXPECT_FALSE(verify::CheckCertificate(on.facts, mutant).ok());
    mutant = claim;
    mutant.tree.insert(mutant.tree.begin(), {.branch = 0});
    mutant.tree.push_back(claim.tree[0]);
    EXPECT_FALSE(verify::CheckCertificate(on.facts, mutant).ok());
    for (size_t k = 0; k < claim.at.size(); ++k) {
      mutant = claim;
      mutant.at[k] += on.random.Percent(50) ? 1 : -1;
      expect(mutant);
      for (const int64_t factor : {0, 3}) {
        mutant = claim;
        mutant.tree[0].multipliers[k].value *= factor;
        if (mutant.tree != claim.tree) expect(mutant);
      }
    }
  }
  const bool few = GetParam() == 1 || IsLimitedTape(GetParam());
  EXPECT_GT(proven, !HasLpSolver() ? 0 : few ? 5 : 30);
  EXPECT_GE(more, !HasLpSolver() ? 0 : few ? 1 : 2);
  EXPECT_GT(rejected, changed / 4) << "of " << changed;
}

TEST_P(VerifyTest, RefusalsBySetsAreTrue) {
  int chains = 0;
  for (const int number : OracleGraphs(200)) {
    const Case on(GetParam(), number, 8);
    SCOPED_TRACE("graph " + std::to_string(number));
    for (OpId at = 0; at < on.graph.op_count(); ++at) {
      for (const verify::Method method :
           {verify::Method::kWorkingSet, verify::Method::kChain,
            verify::Method::kWindow}) {
        // Claims that the step needs one byte more than the budget: if that is
        // accepted, no schedule may fit.
        verify::Certificate claim{.method = method,
                                  .refuses = true,
                                  .least_bytes = on.budget + 1,
                                  .at = {at}};
        if (!verify::CheckCertificate(on.facts, claim).ok()) continue;
        chains += method == verify::Method::kChain;
        EXPECT_FALSE(
            BestSchedule(on.graph, on.capabilities, on.budget).has_value());
      }
    }
  }
  EXPECT_GT(chains, 5);
}

std::string NameOfSet(const testing::TestParamInfo<int>& info) {
  static constexpr const char* kNames[] = {"Reference",    "Tape",
                                           "Any",          "TapeAtReplayPoints",
                                           "AnyInWindows", "TapeInWindows"};
  return kNames[info.param];
}
INSTANTIATE_TEST_SUITE_P(Executors, VerifyTest,
                         testing::Values(0, 1, 2, kTapeAtPoints, kInWindows,
                                         kInWindows + 1),
                         NameOfSet);

}  // namespace
}  // namespace reprise::planner
