// SPDX-License-Identifier: Apache-2.0
//
// The bound where values can be in host memory: against brute force over all
// schedules, at its limits, and its certificates.
#include "planner/bounds/host_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "planner/bounds/certify.h"
#include "planner/bounds/screen.h"
#include "planner/planner.h"
#include "planner/verify/verify.h"
#include "tests/planner/host_case.h"
#include "tests/planner/layers.h"
#include "tests/planner/oracle.h"
#include "tests/planner/oracle_graphs.h"

namespace reprise::planner {
namespace {

const std::function<bool()> kNever;
constexpr int64_t kEnough = 1'000'000'000;

HostBound BoundOf(const Problem& problem, int64_t budget) {
  Effort effort(kEnough, kNever);
  return BoundWithHost(problem, budget, kEnough, effort);
}

// A budget between what some op needs and what the base order needs; -1: these
// are the same.
int64_t BudgetFor(const Problem& problem, Random& random) {
  const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
  const int64_t most = problem.base.peak_bytes;
  return least >= most ? -1 : least + random.Below(most - least);
}

HostPrices RandomPrices(const Problem& problem, OpId at, Random& random) {
  HostPrices prices;
  const auto price = [&] { return random.Below(1000) / 3000.0; };
  for (int i = random.Below(3); i-- > 0 && at > 0;) {
    prices.outs.emplace_back(random.Below(at), price());
  }
  for (int i = random.Below(3); i-- > 0;) {
    prices.ins.emplace_back(at + 1 + random.Below(problem.op_count - at),
                            price());
  }
  if (random.Percent(40)) prices.host_ns_per_byte = random.Below(1000) / 500.0;
  return prices;
}

std::vector<verify::Certificate> MutantsOf(const verify::Certificate& claim,
                                           int op_count, Random& random) {
  std::vector<verify::Certificate> mutants(6, claim);
  ++mutants[0].added_ns;
  mutants[1].at[0] = random.Below(op_count);
  mutants[2].tree[0].price += 1 + random.Below(1000);
  mutants[3].tree[0].multipliers.push_back(
      {random.Below(2 * op_count + 3), 1 + random.Below(1 << 30)});
  mutants[4].tree[0].shift = random.Below(60);
  mutants[5].budget_bytes -= 1 + random.Below(3);
  if (!claim.tree[0].multipliers.empty()) {
    mutants.push_back(claim);
    mutants.back().tree[0].multipliers.pop_back();
    mutants.push_back(claim);
    verify::Multiplier& row = mutants.back().tree[0].multipliers[0];
    row.value = row.value / 1000 * random.Below(2000);
    mutants.push_back(claim);
    mutants.back().tree[0].multipliers[0].row = random.Below(2 * op_count + 2);
  }
  return mutants;
}

// Bound, single windows at any prices, and certificates with every mutant that
// the verifier accepts: none is above the optimum of brute force.
TEST(HostBoundTest, NothingProvesMoreThanBruteForceOverAllSchedules) {
  int steps = 0, positive = 0, tight = 0, less = 0, random_positive = 0;
  int mutants = 0, rejected = 0, limited = 0;
  for (const int number : OracleGraphs(700)) {
    HostCase on(number, 7);
    if (on.graph.storage_count() > 7) continue;
    if (number % 2 == 0) on.capabilities.link.host_bytes = 1000;
    const Problem problem = MakeProblem(on.graph, on.capabilities);
    const int64_t budget = BudgetFor(problem, on.random);
    if (budget < 0) continue;
    int64_t states = 100'000;
    const auto best = BestSchedule(on.graph, on.capabilities, budget, &states);
    if (!best.has_value()) continue;
    SCOPED_TRACE(number);
    const int64_t optimum = best->time_ns - problem.base.time_ns;
    ++steps;

    const HostBound bound = BoundOf(problem, budget);

    EXPECT_LE(bound.added_ns, optimum);
    positive += bound.added_ns > 0;
    tight += optimum > 0 && bound.added_ns == optimum;
    Capabilities alone = on.capabilities;
    alone.link = {};
    const auto recompute = BestSchedule(on.graph, alone, budget);
    const bool gains =
        !recompute.has_value() || recompute->time_ns > best->time_ns;
    less += gains;
    limited += gains && number % 2 != 0;
    for (OpId at = 0; at < problem.op_count; ++at) {
      WindowBound window(problem, at);
      for (int i = 0; i < 3; ++i) {
        const WindowResult result =
            window.SolveWithHost(budget, RandomPrices(problem, at, on.random));
        EXPECT_FALSE(result.impossible);
        EXPECT_LE(result.added_ns, optimum) << at;
        random_positive += result.added_ns > 0;
      }
    }
    if (bound.at == kNoOp) continue;
    const verify::Certificate claim = CertifyHost(problem, budget, bound);
    ASSERT_EQ(claim.method, verify::Method::kWindow);
    EXPECT_EQ(claim.added_ns, bound.added_ns);
    const auto facts =
        verify::ReadFacts(on.graph, ExecutorOf(problem.capabilities));
    for (const verify::Certificate& mutant :
         MutantsOf(claim, problem.op_count, on.random)) {
      ++mutants;
      if (!verify::CheckCertificate(*facts, mutant).ok()) {
        ++rejected;
        continue;
      }
      // With less memory, the optimum is at least that.
      EXPECT_LE(mutant.budget_bytes, budget);
      if (mutant.budget_bytes < budget) continue;
      EXPECT_LE(mutant.added_ns, optimum);
    }
  }
  std::printf(
      "%d steps, %d bounds above 0, %d tight, %d random; host memory "
      "gains in %d, limited in %d; %d of %d mutants rejected\n",
      steps, positive, tight, random_positive, less, limited, rejected,
      mutants);
  EXPECT_GT(steps, 120);
  EXPECT_GT(positive, 80);
  EXPECT_GT(tight, 15);
  EXPECT_GT(less, 50);
  EXPECT_GT(limited, 20);
  EXPECT_GT(random_positive, 100);
  EXPECT_GT(rejected, mutants / 3);
}

TEST(HostBoundTest, ProofsOfStepsWithoutHostMemoryAreNotAccepted) {
  const StepGraph graph = Layers(2, 128);
  Capabilities can;
  const Problem alone = MakeProblem(graph, can);
  const int64_t budget = alone.base.peak_bytes * 7 / 10;
  const auto plan = MakePlan(graph, {.budget_bytes = budget});
  ASSERT_TRUE(plan.ok() && plan->bound_ns > 0);
  can.link = {.out_bytes_per_s = kEnough,
              .in_bytes_per_s = kEnough,
              .host_bytes = budget};
  const auto facts = verify::ReadFacts(graph, ExecutorOf(can));
  verify::Certificate claim = plan->certificate;

  EXPECT_FALSE(verify::CheckCertificate(*facts, claim).ok());
  for (const verify::Method method :
       {verify::Method::kWindow, verify::Method::kChain,
        verify::Method::kWindows}) {
    claim = {.method = method,
             .refuses = true,
             .budget_bytes = budget,
             .least_bytes = 1,
             .at = {3}};
    EXPECT_FALSE(verify::CheckCertificate(*facts, claim).ok());
  }
  claim.method = verify::Method::kWorkingSet;
  EXPECT_TRUE(verify::CheckCertificate(*facts, claim).ok());
}

TEST(HostBoundTest, WhereNotEvenOneOpFitsThereIsNoBound) {
  const StepGraph graph = Layers(2, 128);
  const Problem problem =
      MakeProblem(graph, {.link = {.out_bytes_per_s = kEnough,
                                   .in_bytes_per_s = kEnough,
                                   .host_bytes = kEnough}});

  const HostBound bound = BoundOf(problem, 1);

  EXPECT_EQ(bound.at, kNoOp);
  EXPECT_EQ(bound.added_ns, 0);
}

TEST(HostBoundTest, ALinkThatTakesForEverProvesWhatNoLinkDoes) {
  int compared = 0;
  for (const int number : OracleGraphs(400)) {
    HostCase on(number, 9);
    for (Op& op : on.graph.ops) {
      op.time_ns *= 1'000'000;
      op.again_ns *= 1'000'000;
    }
    Capabilities can = on.capabilities;
    can.link = {};
    const Problem alone = MakeProblem(on.graph, can);
    can.link = {.out_bytes_per_s = 1,
                .in_bytes_per_s = 1,
                .latency_ns = 1'000'000'000'000'000,
                .host_bytes = 1000};
    const Problem problem = MakeProblem(on.graph, can);
    const int64_t budget = BudgetFor(problem, on.random);
    if (budget < 0) continue;
    for (OpId at = 0; at < problem.op_count; ++at) {
      const WindowResult today = WindowBound(alone, at).Solve(budget);
      if (today.impossible) continue;
      HostPrices prices;
      if (at > 0) prices.outs = {{0, 1e-6}};
      prices.ins = {{problem.op_count, 1e-6}};

      const WindowResult result =
          WindowBound(problem, at).SolveWithHost(budget, prices);

      // Less the price of the rows, at the scale of a cut; never more than the
      // cheapest cut that fits, if all prices were tried.
      EXPECT_GE(result.added_ns, today.added_ns - today.added_ns / 1000 - 100)
          << number << " at " << at;
      if (today.has_keep_set) {
        EXPECT_LE(result.added_ns, today.keep_set.cost_ns)
            << number << " " << at;
      }
      compared += today.added_ns > 0;
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(HostBoundTest, ALinkWithoutLimitsLeavesNothingToProve) {
  int compared = 0;
  for (const int number : OracleGraphs(200)) {
    HostCase on(number, 9);
    Capabilities can = on.capabilities;
    can.link = {.out_bytes_per_s = int64_t{1} << 60,
                .in_bytes_per_s = int64_t{1} << 60,
                .host_bytes = int64_t{1} << 60};
    StepGraph graph = on.graph;
    for (Op& op : graph.ops) op.time_ns += 1000;
    const Problem problem = MakeProblem(graph, can);
    const int64_t budget = BudgetFor(problem, on.random);
    if (budget < 0) continue;
    // Every copy takes 1 ns, which nothing hides where two ops follow each
    // other: at most that of all storages, twice.
    EXPECT_LE(BoundOf(problem, budget).added_ns, 2 * graph.storage_count());
    ++compared;
  }
  EXPECT_GT(compared, 50);
}

// At any prices, more budget, host memory or bandwidth proves no more.
TEST(HostBoundTest, FallsWithTheBudgetTheHostAndTheBandwidth) {
  const StepGraph graph = Layers(4, 512);
  Random random(5);
  int falls = 0;
  const Link link{.out_bytes_per_s = 52'000'000'000,
                  .in_bytes_per_s = 52'000'000'000,
                  .latency_ns = 2000,
                  .host_bytes = 40 << 20};
  const auto added = [&](const Link& with, int64_t budget, OpId at,
                         const HostPrices& prices) {
    const Problem problem = MakeProblem(graph, {.link = with});
    return WindowBound(problem, at).SolveWithHost(budget, prices).value_ns;
  };
  const Problem problem = MakeProblem(graph, {.link = link});
  const int64_t budget = problem.base.peak_bytes / 3;
  for (int i = 0; i < 40; ++i) {
    const OpId at = problem.op_count / 2 - 10 + random.Below(20);
    HostPrices prices = RandomPrices(problem, at, random);
    prices.host_ns_per_byte /= 1000;
    for (auto& row : prices.outs) row.second /= 3;
    for (auto& row : prices.ins) row.second /= 3;
    const double here = added(link, budget, at, prices);
    Link faster = link, larger = link;
    faster.out_bytes_per_s *= 2;
    faster.in_bytes_per_s *= 2;
    larger.host_bytes *= 2;
    // The price of a byte is found to about one in a million.
    const double slack = 1e-5 * static_cast<double>(problem.base.time_ns);
    for (const double more : {added(link, budget * 11 / 10, at, prices),
                              added(faster, budget, at, prices),
                              added(larger, budget, at, prices)}) {
      EXPECT_LE(more, here + slack);
      falls += more < here - slack;
    }
  }
  EXPECT_GT(falls, 30);
}

// 32 layers of a 7B model, 4096 tokens, PCIe 5: offload.md's relaxation of all
// rows, without what ops use themselves, proves 1.07, 3.44, 7.57 %.
TEST(HostBoundTest, ProvesOfLargeLayersWhatTheRelaxationOfAllRowsDoes) {
  const StepGraph graph = Layers(32, 4096);
  int64_t bytes = 0;
  for (const Storage& storage : graph.storages) bytes += storage.bytes;
  const Problem problem =
      MakeProblem(graph, {.link = {.out_bytes_per_s = 52'000'000'000,
                                   .in_bytes_per_s = 52'000'000'000,
                                   .host_bytes = int64_t{1} << 40}});
  for (const auto& [percent, least] :
       {std::pair{50, 0.0107}, {30, 0.0344}, {20, 0.0757}}) {
    const int64_t budget = bytes / 100 * percent;

    const HostBound bound = BoundOf(problem, budget);

    const double overhead = static_cast<double>(bound.added_ns) /
                            static_cast<double>(problem.base.time_ns);
    EXPECT_GT(overhead, least - 0.0003) << percent;
    EXPECT_LT(overhead, least + 0.008) << percent;
    EXPECT_EQ(CertifyHost(problem, budget, bound).added_ns, bound.added_ns);
  }
}

}  // namespace
}  // namespace reprise::planner
