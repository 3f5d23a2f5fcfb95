// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/block_plan.h"

#include <gtest/gtest.h>

#include <optional>

#include "bench/generate/generate.h"
#include "planner/model/evaluate.h"
#include "planner/planner.h"
#include "planner/search/solve.h"

namespace reprise::planner {
namespace {

const std::function<bool()> kNever;

int64_t PartOf(const Problem& problem, int percent) {
  return problem.static_bytes +
         (problem.base.peak_bytes - problem.static_bytes) / 100 * percent;
}

// Returns the window with the largest bound.
OpId BestWindow(const Certificate& certificate) {
  OpId best = certificate.tried().begin()->first;
  for (const auto& [at, window] : certificate.tried()) {
    if (window.added_ns > certificate.tried().at(best).added_ns) best = at;
  }
  return best;
}

// Inputs of a construction from blocks, with a budget of `percent` of the
// dynamic peak.
struct Construction {
  Construction(const StepGraph& graph, const Capabilities& capabilities,
               int percent)
      : problem(MakeProblem(graph, capabilities)),
        budget(PartOf(problem, percent)),
        effort(100'000'000, kNever),
        certificate(problem, budget, effort),
        generator(problem) {
    CertifyBase(problem, budget, 3'000'000, certificate, effort);
    if (certificate.impossible()) return;
    plan.emplace(problem, FindBlocks(problem), BestWindow(certificate));
    plan->Fit(budget, certificate, generator, archive, effort);
  }

  Problem problem;
  int64_t budget;
  Effort effort;
  Certificate certificate;
  Generator generator;
  Archive archive;
  std::optional<BlockPlan> plan;
};

TEST(BlockPlanTest, ItsPlansPassTheEvaluatorAndNeverBeatTheBound) {
  for (const GraphKind kind :
       {GraphKind::kTransformer, GraphKind::kResNet, GraphKind::kUNet,
        GraphKind::kMoe, GraphKind::kDiffusionUNet}) {
    for (const int percent : {70, 40, 25}) {
      const StepGraph graph = *Generate({.kind = kind, .ops = 500});
      Construction built(graph, {.seeded_ok = true}, percent);
      if (!built.plan.has_value()) continue;
      const Problem& problem = built.problem;
      const int64_t budget = built.budget;
      const Archive& archive = built.archive;
      const Score score{.budget_bytes = budget,
                        .base_time_ns = problem.base.time_ns,
                        .base_peak_bytes = problem.base.peak_bytes};

      built.plan->Improve(score, 1, 2'000'000, /*patient=*/true, 0,
                          built.generator, built.archive, built.effort);

      const Archive::Point* best = archive.Best(budget);
      const Archive::Point* found = best != nullptr ? best : archive.Smallest();
      ASSERT_NE(found, nullptr);
      const auto evaluation =
          Evaluate(graph, WithFrees(graph, found->execs, FreePolicy::kEager),
                   problem.capabilities);
      ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
      EXPECT_EQ(evaluation->peak_bytes, found->peak_bytes);
      EXPECT_EQ(evaluation->time_ns, found->time_ns);
      if (best == nullptr) continue;
      EXPECT_LE(best->peak_bytes, budget);
      EXPECT_GE(best->time_ns - problem.base.time_ns,
                built.certificate.added_ns());
    }
  }
}

TEST(BlockPlanTest, ManyBlocksLeaveLittleOfTheGapAtATightBudget) {
  // At such a budget a cut drops whole stages and would need one burst as large
  // as a stage.
  const StepGraph graph = *Generate({.kind = GraphKind::kResNet, .ops = 3000});

  const Construction built(graph, {}, 20);

  const Archive::Point* best = built.archive.Best(built.budget);
  ASSERT_NE(best, nullptr);
  const int64_t base_ns = built.problem.base.time_ns;
  const double gap =
      Overhead(best->time_ns - base_ns - built.certificate.added_ns(), base_ns);
  EXPECT_LT(gap, 0.03);
}

TEST(BlockPlanTest, ItStopsEarlyWhereItDoesNotBeatWhatIsKnownUnlessPatient) {
  const StepGraph graph = *Generate({.kind = GraphKind::kResNet, .ops = 500});
  constexpr int64_t kTicks = 3'000'000;
  std::vector<int64_t> spent;
  for (const bool patient : {false, true}) {
    Construction built(graph, {}, 40);
    ASSERT_TRUE(built.plan.has_value() && !built.plan->empty());
    const Score score{.budget_bytes = built.budget,
                      .base_time_ns = built.problem.base.time_ns,
                      .base_peak_bytes = built.problem.base.peak_bytes};
    // As fast as a step without re-runs, which no plan is.
    built.archive.Add(0, built.problem.base.time_ns, {}, "known");
    const int64_t before = built.effort.ticks();

    built.plan->Improve(score, 1, kTicks, patient, 0, built.generator,
                        built.archive, built.effort);

    spent.push_back(built.effort.ticks() - before);
  }

  // One of three refinements, a quarter of it.
  EXPECT_LT(spent[0], kTicks / 10);
  EXPECT_GT(spent[1], kTicks * 9 / 10);
}

TEST(BlockPlanTest, NoRepeatedBlocksNoClasses) {
  const StepGraph graph = *Generate({.kind = GraphKind::kLayered, .ops = 300});
  const Problem problem = MakeProblem(graph, {});

  const BlockPlan plan(problem, FindBlocks(problem), problem.first_backward);

  EXPECT_TRUE(plan.empty());
}

TEST(BlockPlanTest, ThePortfolioIsNeverWorseThanItsConstruction) {
  for (const GraphKind kind : {GraphKind::kResNet, GraphKind::kUNet}) {
    const StepGraph graph = *Generate({.kind = kind, .ops = 1500});
    const Construction built(graph, {}, 35);
    const Archive::Point* best = built.archive.Best(built.budget);

    const auto whole = MakePlan(graph, {.budget_bytes = built.budget,
                                        .target_gap = 0,
                                        .max_ticks = 60'000'000});

    ASSERT_TRUE(whole.ok());
    ASSERT_TRUE(whole->feasible);
    ASSERT_NE(best, nullptr);
    EXPECT_LE(whole->evaluation.time_ns, best->time_ns);
  }
}

}  // namespace
}  // namespace reprise::planner
