// SPDX-License-Identifier: Apache-2.0
//
// Plans that use host memory: against brute force, against the plan without, and
// on large layers.
#include "planner/host_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "bench/generate/generate.h"
#include "planner/bounds/certify.h"
#include "planner/bounds/screen.h"
#include "planner/host/place_copies.h"
#include "planner/planner.h"
#include "planner/verify/verify.h"
#include "tests/planner/host_case.h"
#include "tests/planner/layers.h"
#include "tests/planner/oracle.h"
#include "tests/planner/oracle_graphs.h"

namespace reprise::planner {
namespace {

using ::testing::HasSubstr;

constexpr Link kPcie{.out_bytes_per_s = 52'000'000'000,
                     .in_bytes_per_s = 52'000'000'000,
                     .latency_ns = 10'000,
                     .host_bytes = int64_t{1} << 40};

Request Within(int64_t budget, const Capabilities& can, int64_t ticks = 0) {
  return {.budget_bytes = budget, .capabilities = can, .max_ticks = ticks};
}

// Expects that evaluator and verifier agree with a plan, and that its proof is
// accepted.
void ExpectTrue(const StepGraph& graph, const Plan& plan,
                const Request& request) {
  const auto facts =
      verify::ReadFacts(graph, ExecutorOf(WithExecution(request.capabilities)));
  ASSERT_TRUE(facts.ok());
  if (plan.feasible) {
    const auto evaluated = Evaluate(graph, plan.schedule, request.capabilities);
    const auto walked = verify::Walk(*facts, CodesOf(plan.schedule));
    ASSERT_TRUE(evaluated.ok() && walked.ok());
    EXPECT_EQ(evaluated->time_ns, plan.evaluation.time_ns);
    EXPECT_EQ(walked->time_ns, plan.evaluation.time_ns);
    EXPECT_EQ(walked->peak_bytes, plan.evaluation.peak_bytes);
    EXPECT_EQ(walked->host_peak_bytes, plan.evaluation.host_peak_bytes);
    EXPECT_LE(walked->peak_bytes, request.budget_bytes);
    EXPECT_LE(walked->host_peak_bytes, request.capabilities.link.host_bytes);
  }
  if (plan.certificate.method == verify::Method::kNone) return;
  EXPECT_EQ(verify::CheckCertificate(*facts, plan.certificate), OkStatus());
  EXPECT_EQ(plan.bound_proof, BoundProof::kChecked);
}

TEST(HostPlanTest, TheBoundIsBelowTheOptimumAndThePlanIsNot) {
  int steps = 0, planned = 0, optimal = 0, hosted = 0, gains = 0, best_gain = 0;
  for (const int number : OracleGraphs(500)) {
    HostCase on(number, 7);
    if (on.graph.storage_count() > 7) continue;
    const Problem problem = MakeProblem(on.graph, on.capabilities);
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    if (least >= problem.base.peak_bytes) continue;
    const int64_t budget =
        least + on.random.Below(problem.base.peak_bytes - least);
    int64_t states = 100'000;
    const auto best = BestSchedule(on.graph, on.capabilities, budget, &states);
    if (states < 0) continue;
    SCOPED_TRACE(number);
    const Request request = Within(budget, on.capabilities, 400'000);
    Request alone = request;
    alone.capabilities.link = {};

    const auto plan = MakePlan(on.graph, request);
    const auto without = MakePlan(on.graph, alone);

    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ExpectTrue(on.graph, *plan, request);
    ASSERT_EQ(plan->feasible && !best.has_value(), false);
    EXPECT_TRUE(plan->feasible || plan->undecided);
    if (without->feasible) {
      ASSERT_TRUE(plan->feasible);
      EXPECT_LE(plan->evaluation.time_ns, without->evaluation.time_ns);
    }
    if (!best.has_value()) continue;
    ++steps;
    EXPECT_LE(plan->bound_ns, best->time_ns - problem.base.time_ns);
    const bool gain =
        !without->feasible || without->evaluation.time_ns > best->time_ns;
    best_gain += gain;
    if (!plan->feasible) continue;
    ++planned;
    EXPECT_GE(plan->evaluation.time_ns, best->time_ns);
    optimal += plan->evaluation.time_ns == best->time_ns;
    hosted += UsesHost(plan->schedule);
    gains += gain && UsesHost(plan->schedule);
  }
  std::printf(
      "%d steps, %d planned, %d optimal; host memory helps in %d, "
      "used in %d, helps there in %d\n",
      steps, planned, optimal, best_gain, hosted, gains);
  EXPECT_GT(steps, 80);
  EXPECT_GT(planned, steps * 8 / 10);
  EXPECT_GT(optimal, planned * 6 / 10);
  EXPECT_GT(gains, 20);
}

TEST(HostPlanTest, HidesMostOfWhatRecomputationAloneWouldAdd) {
  const StepGraph graph = Layers(8, 4096);
  int64_t bytes = 0;
  for (const Storage& storage : graph.storages) bytes += storage.bytes;
  Request request = Within(bytes / 10 * 3, {.link = kPcie}, 30'000'000);

  const auto plan = MakePlan(graph, request);
  const auto again = MakePlan(graph, request);
  request.capabilities.link = {};
  const auto alone = MakePlan(graph, request);

  ASSERT_TRUE(plan.ok() && plan->feasible);
  request.capabilities.link = kPcie;
  ExpectTrue(graph, *plan, request);
  EXPECT_GT(alone->overhead, 0.14);
  EXPECT_LT(plan->overhead, alone->overhead / 2);
  EXPECT_LT(plan->overhead - plan->bound, 0.015);
  EXPECT_EQ(plan->bound_proof, BoundProof::kChecked);
  EXPECT_GT(plan->evaluation.host_peak_bytes, bytes / 10);
  EXPECT_EQ(plan->solver, "host");
  EXPECT_GT(std::count(plan->decisions.begin(), plan->decisions.end(),
                       Decision::kOffload),
            8);
  EXPECT_EQ(again->schedule, plan->schedule);
  EXPECT_EQ(again->ticks, plan->ticks);
}

TEST(HostPlanTest, NothingIsSearchedWhereCopiesAloneCostNothing) {
  const StepGraph graph = Layers(8, 4096);
  int64_t bytes = 0;
  for (const Storage& storage : graph.storages) bytes += storage.bytes;
  Request request = Within(bytes / 2, {.link = kPcie});
  request.capabilities.link.out_bytes_per_s *= 100;
  request.capabilities.link.in_bytes_per_s *= 100;
  request.capabilities.link.latency_ns = 0;
  Request alone = request;
  alone.capabilities.link = {};

  const auto plan = MakePlan(graph, request);
  const auto searched = MakePlan(graph, alone);

  ASSERT_TRUE(plan.ok() && plan->feasible);
  ExpectTrue(graph, *plan, request);
  EXPECT_TRUE(plan->proven_optimal);
  EXPECT_EQ(plan->overhead, 0);
  EXPECT_GT(searched->ticks, 20 * plan->ticks);
}

TEST(HostPlanTest, WhatCannotMoveIsMadeAgainWhereCopiesLackLittle) {
  StepGraph graph = Layers(8, 4096);
  for (const Op& op : graph.ops) {
    if (op.name != "silu") continue;
    for (const StorageId s : op.writes) graph.storages[s].stays = true;
  }
  Capabilities can{.link = kPcie};
  can.link.out_bytes_per_s *= 100;
  can.link.in_bytes_per_s *= 100;
  const Problem problem = MakeProblem(graph, can);
  const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
  const Schedule copies =
      PlaceCopies(problem, BaseExecs(graph), least + least / 8);
  const auto base = Evaluate(graph, copies, can);
  ASSERT_TRUE(base.ok());
  Request request = Within(least + least / 8, can);
  request.target_gap = 0.01;
  ASSERT_GT(base->peak_bytes, request.budget_bytes);

  const auto plan = MakePlan(graph, request);

  ASSERT_TRUE(plan.ok() && plan->feasible);
  ExpectTrue(graph, *plan, request);
  std::vector<int> runs(graph.op_count(), 0);
  for (const Entry& entry : plan->schedule) {
    if (entry.kind != Entry::Kind::kExec || ++runs[entry.id] == 1) continue;
    EXPECT_EQ(graph.ops[entry.id].name, "silu");
  }
  EXPECT_LE(plan->overhead, 0.01);
  EXPECT_LT(plan->ticks, 30'000'000);  // a search alone takes 600 million
}

TEST(HostPlanTest, LessHostMemoryIsKeptToAndWithoutAnyNothingChanges) {
  const StepGraph graph = Layers(4, 4096);
  int64_t bytes = 0;
  for (const Storage& storage : graph.storages) bytes += storage.bytes;
  Request request = Within(bytes / 10 * 4, {}, 10'000'000);
  const auto alone = MakePlan(graph, request);
  request.capabilities.link = kPcie;
  request.capabilities.link.host_bytes = 0;
  const auto none = MakePlan(graph, request);
  EXPECT_EQ(none->schedule, alone->schedule);
  EXPECT_EQ(none->bound_ns, alone->bound_ns);
  EXPECT_EQ(none->ticks, alone->ticks);

  int64_t before = alone->evaluation.time_ns;
  for (const int64_t mib : {100, 300, 2000}) {
    request.capabilities.link.host_bytes = mib << 20;
    const auto plan = MakePlan(graph, request);
    ASSERT_TRUE(plan.ok() && plan->feasible);
    ExpectTrue(graph, *plan, request);
    EXPECT_LE(plan->evaluation.time_ns, before);
    before = plan->evaluation.time_ns;
  }
  EXPECT_LT(before, alone->evaluation.time_ns);
}

TEST(HostPlanTest, IsNeverWorseThanWithoutOnStepsOfEveryKind) {
  int used = 0;
  for (const GraphKind kind :
       {GraphKind::kTransformer, GraphKind::kResNet, GraphKind::kUNet,
        GraphKind::kMoe, GraphKind::kDiffusionUNet, GraphKind::kLayered}) {
    const auto graph = Generate({.kind = kind, .ops = 300});
    ASSERT_TRUE(graph.ok());
    const Problem problem = MakeProblem(*graph, {});
    const int64_t dynamic = problem.base.peak_bytes - graph->static_bytes;
    for (const int percent : {60, 40}) {
      SCOPED_TRACE(testing::Message() << graph->name << " " << percent);
      Request request = Within(graph->static_bytes + dynamic / 100 * percent,
                               {.link = kPcie}, 5'000'000);
      const auto plan = MakePlan(*graph, request);
      Request alone = request;
      alone.capabilities.link = {};
      const auto without = MakePlan(*graph, alone);

      ASSERT_TRUE(plan.ok()) << plan.status().message();
      ExpectTrue(*graph, *plan, request);
      if (!without->feasible) continue;
      ASSERT_TRUE(plan->feasible);
      EXPECT_LE(plan->evaluation.time_ns, without->evaluation.time_ns);
      EXPECT_LE(plan->bound_ns, std::max<int64_t>(0, without->bound_ns));
      used += UsesHost(plan->schedule);
    }
  }
  EXPECT_GT(used, 4);
}

TEST(HostPlanTest, RefusesOnlyWhatOneOpNeeds) {
  const StepGraph graph = Layers(2, 4096);
  Request request = Within(1 << 20, {.link = kPcie}, 1'000'000);

  const auto plan = MakePlan(graph, request);

  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->feasible);
  EXPECT_FALSE(plan->undecided);
  EXPECT_EQ(plan->certificate.method, verify::Method::kWorkingSet);
  ExpectTrue(graph, *plan, request);
  request.budget_bytes = plan->infeasible.smallest_budget_bytes;
  EXPECT_FALSE(MakePlan(graph, request)->undecided &&
               MakePlan(graph, request)->certificate.refuses);
}

// State of optimizers is there when a step begins and when it ends, and nothing
// reads it before an optimizer steps.
TEST(HostPlanTest, StateThatOnlyOptimizersReadMakesRoomForActivations) {
  auto graph = Generate({.kind = GraphKind::kTransformer, .ops = 300});
  ASSERT_TRUE(graph.ok());
  constexpr int kGroups = 16;
  const int64_t held = graph->static_bytes / 2 / kGroups;
  StepGraph with = *graph;
  with.static_bytes -= kGroups * held;
  with.static_parts = {};
  for (int group = 0; group < kGroups; ++group) AddState(with, held);
  Request request = Within(1, {.link = kPcie}, 5'000'000);

  const auto alone = MakePlan(*graph, request);
  const auto refused = MakePlan(with, request);

  ASSERT_TRUE(alone.ok() && refused.ok());
  const int64_t least = alone->infeasible.smallest_known_bytes;
  EXPECT_LT(refused->infeasible.smallest_known_bytes, least);
  request.budget_bytes = refused->infeasible.smallest_known_bytes;
  const auto plan = MakePlan(with, request);
  ASSERT_TRUE(plan.ok() && plan->feasible);
  ExpectTrue(with, *plan, request);
  EXPECT_FALSE(MakePlan(*graph, request)->feasible);
  for (const Entry& entry : plan->schedule) {
    const bool is_state =
        entry.kind != Entry::Kind::kExec && entry.id >= graph->storage_count();
    EXPECT_FALSE(is_state && entry.kind == Entry::Kind::kFree);
  }
}

TEST(HostPlanTest, RequestsThatMakeNoSenseAreRefused) {
  const StepGraph graph = Layers(1, 128);
  Request request = Within(1 << 30, {.link = kPcie});
  request.strategy = Strategy::kMemory;
  EXPECT_THAT(MakePlan(graph, request).status().message(),
              HasSubstr("use no host memory"));
  request.strategy = Strategy::kAuto;
  EXPECT_THAT(Sweep(graph, request, 3).status().message(),
              HasSubstr("without host"));
  request.capabilities.execution = Execution::kOnce;
  EXPECT_THAT(MakePlan(graph, request).status().message(),
              HasSubstr("use no host memory"));
  request.capabilities = {.link = {.latency_ns = -1}};
  EXPECT_THAT(MakePlan(graph, request).status().message(),
              HasSubstr("must not be negative"));
}

TEST(HostPlanTest, AnInterruptedSearchHasThePlanOfTheSearchWithout) {
  const StepGraph graph = Layers(4, 4096);
  int64_t bytes = 0;
  for (const Storage& storage : graph.storages) bytes += storage.bytes;
  Request request = Within(bytes / 2, {.link = kPcie}, 10'000'000);
  int asked = 0;
  request.should_stop = [&asked] { return ++asked > 60; };

  const auto plan = MakePlan(graph, request);

  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->interrupted);
  ASSERT_TRUE(plan->feasible);
  ExpectTrue(graph, *plan, request);
}

// a makes x (4), b and c need 8 of 10 bytes, d reads x.
TEST(PlaceCopiesTest, SendsEarlyLeavesLateAndComesBackEarly) {
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 1}, {.bytes = 1}};
  graph.ops = {{.time_ns = 9, .writes = {0}},
               {.time_ns = 9, .writes = {1}},
               {.time_ns = 9, .workspace_bytes = 8, .reads = {1}},
               {.time_ns = 9, .reads = {1}, .writes = {2}},
               {.time_ns = 9, .reads = {0, 2}}};
  const Problem problem =
      MakeProblem(graph, {.link = {.out_bytes_per_s = 1'000'000'000,
                                   .in_bytes_per_s = 1'000'000'000,
                                   .host_bytes = 4}});
  using Kind = Entry::Kind;

  const Schedule placed = PlaceCopies(problem, BaseExecs(graph), 10);

  EXPECT_EQ(placed, (Schedule{Exec(0),
                              {Kind::kSend, 0},
                              Exec(1),
                              {Kind::kSent, 0},
                              Exec(2),
                              {Kind::kFetch, 0},
                              Exec(3),
                              Free(1),
                              {Kind::kFetched, 0},
                              Exec(4),
                              Free(0),
                              Free(2)}));
  const auto walked = Evaluate(graph, placed, problem.capabilities);
  ASSERT_TRUE(walked.ok());
  EXPECT_EQ(walked->peak_bytes, 9);
  EXPECT_EQ(walked->time_ns, 45);  // both copies are hidden

  graph.storages[0].stays = true;
  EXPECT_EQ(PlaceCopies(problem, BaseExecs(graph), 10),
            WithFrees(graph, BaseExecs(graph), FreePolicy::kEager));
}

// a makes x (4), b and c need 8 of 10 bytes, d writes x in place, e reads it.
TEST(PlaceCopiesTest, ATapeSendsNothingThatIsStillToBeWritten) {
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 1}};
  graph.ops = {{.time_ns = 9, .writes = {0}},
               {.time_ns = 9, .writes = {1}},
               {.time_ns = 9, .workspace_bytes = 8, .reads = {1}},
               {.time_ns = 9, .reads = {0}, .mutates = {0}},
               {.time_ns = 9, .reads = {0}}};
  Capabilities can = {.link = {.out_bytes_per_s = 1'000'000'000,
                               .in_bytes_per_s = 1'000'000'000,
                               .host_bytes = 4}};
  const auto placed = [&] {
    return PlaceCopies(MakeProblem(graph, can), BaseExecs(graph), 10);
  };

  EXPECT_TRUE(UsesHost(placed()));
  can.recompute_in_backward_only = true;
  EXPECT_FALSE(UsesHost(placed()));
  // The same after the write.
  std::swap(graph.ops[1], graph.ops[3]);
  std::swap(graph.ops[2], graph.ops[3]);
  EXPECT_TRUE(UsesHost(placed()));
}

}  // namespace
}  // namespace reprise::planner
