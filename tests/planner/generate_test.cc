// SPDX-License-Identifier: Apache-2.0
#include "bench/generate/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "planner/bounds/screen.h"
#include "planner/model/evaluate.h"
#include "planner/model/problem.h"

namespace reprise::planner {
namespace {

using testing::HasSubstr;

StepGraph Made(GraphKind kind, int ops, uint64_t seed = 1) {
  StatusOr<StepGraph> graph =
      Generate({.kind = kind, .ops = ops, .seed = seed});
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return *std::move(graph);
}

int64_t TimeOf(const StepGraph& graph, Phase phase) {
  int64_t sum = 0;
  for (const Op& op : graph.ops) {
    if (op.phase == phase) sum += op.time_ns;
  }
  return sum;
}

std::string Fingerprint(const StepGraph& graph) {
  std::string text;
  for (const Op& op : graph.ops) {
    text += std::to_string(op.time_ns) + op.module + ",";
    for (const StorageId s : op.reads) text += std::to_string(s) + " ";
  }
  for (const Storage& s : graph.storages) text += std::to_string(s.bytes) + ";";
  return text;
}

class GeneratedGraphs : public testing::TestWithParam<int> {
 protected:
  GraphKind kind() const { return static_cast<GraphKind>(GetParam()); }
};

TEST_P(GeneratedGraphs, AreValidAndAsLargeAsAsked) {
  for (const int ops : {100, 300, 1'000, 100'000}) {
    const StepGraph graph = Made(kind(), ops);

    EXPECT_TRUE(Validate(graph).ok()) << Validate(graph).message();
    EXPECT_LE(graph.op_count(), ops);
    // One more unit would be too many; no unit has more than 150 ops.
    EXPECT_GT(graph.op_count(), ops < 300 ? ops / 3 : ops - 150);
  }
}

TEST_P(GeneratedGraphs, TakeAboutTwiceAsLongBackwardAsForward) {
  const StepGraph graph = Made(kind(), 1'000);

  const double ratio = static_cast<double>(TimeOf(graph, Phase::kBackward)) /
                       static_cast<double>(TimeOf(graph, Phase::kForward));

  EXPECT_GT(ratio, 1.5);
  EXPECT_LT(ratio, 2.6);
}

TEST_P(GeneratedGraphs, PeakAboveTheirWorkingSetOnActivations) {
  const StepGraph graph = Made(kind(), 1'000);
  const Problem problem = MakeProblem(graph, {});
  const Schedule base = BaseSchedule(graph, FreePolicy::kEager);

  EXPECT_GT(problem.base.peak_bytes - graph.static_bytes,
            2 * (LargestWorkingSet(problem).smallest_budget_bytes -
                 graph.static_bytes));
  int64_t activations = 0;
  for (const Lifetime& life : Lifetimes(graph, base)) {
    const bool alive = life.born <= problem.base.peak_entry &&
                       problem.base.peak_entry < life.dead;
    const Storage& storage = graph.storages[life.storage];
    if (alive && storage.category == Category::kActivation) {
      activations += storage.bytes;
    }
  }
  EXPECT_GT(activations,
            (problem.base.peak_bytes - graph.static_bytes) * 6 / 10);
}

TEST_P(GeneratedGraphs, DependOnKindSizeAndSeedAlone) {
  EXPECT_EQ(Fingerprint(Made(kind(), 500, 7)),
            Fingerprint(Made(kind(), 500, 7)));
  EXPECT_NE(Fingerprint(Made(kind(), 500, 7)),
            Fingerprint(Made(kind(), 500, 8)));
}

TEST_P(GeneratedGraphs, HaveModulesPhasesAndSavedStorages) {
  const StepGraph graph = Made(kind(), 1'000);

  std::set<std::string> modules;
  int saved = 0;
  for (const Op& op : graph.ops) modules.insert(op.module);
  for (const Storage& s : graph.storages) saved += s.saved_for_backward;

  EXPECT_GT(modules.size(), 5u);
  EXPECT_GT(saved, 50);
  EXPECT_FALSE(graph.required.empty());
  EXPECT_TRUE(std::is_sorted(
      graph.ops.begin(), graph.ops.end(),
      [](const Op& a, const Op& b) { return a.phase < b.phase; }));
}

INSTANTIATE_TEST_SUITE_P(Kinds, GeneratedGraphs, testing::Range(0, 6),
                         [](const auto& info) {
                           std::string name(GraphKindNames()[info.param]);
                           std::erase(name, '-');
                           return name;
                         });

bool Any(const StepGraph& graph, bool (*is)(const Op&)) {
  return std::any_of(graph.ops.begin(), graph.ops.end(), is);
}

TEST(GenerateTest, CoversEveryFeatureOfTheFormat) {
  const StepGraph transformer = Made(GraphKind::kTransformer, 1'000);
  const StepGraph resnet = Made(GraphKind::kResNet, 1'000);
  const StepGraph moe = Made(GraphKind::kMoe, 1'000);
  const auto is_kind = [](const StepGraph& graph, OpKind kind) {
    return std::any_of(graph.ops.begin(), graph.ops.end(),
                       [&](const Op& op) { return op.kind == kind; });
  };

  EXPECT_TRUE(is_kind(transformer, OpKind::kSeeded));
  EXPECT_TRUE(is_kind(transformer, OpKind::kView));
  EXPECT_TRUE(is_kind(transformer, OpKind::kOnce));
  EXPECT_TRUE(is_kind(moe, OpKind::kCollective));
  EXPECT_TRUE(Any(resnet, [](const Op& op) { return !op.mutates.empty(); }));
  EXPECT_TRUE(Any(resnet, [](const Op& op) { return op.workspace_bytes > 0; }));
  EXPECT_TRUE(Any(resnet, [](const Op& op) { return op.writes.size() > 1; }));
}

TEST(GenerateTest, RefusesWhatItCannotMake) {
  EXPECT_THAT(Generate({.ops = 99}).status().message(),
              HasSubstr("ops: must be from 100 to 1000000, got 99"));
  EXPECT_THAT(Generate({.ops = 1'000'001}).status().message(),
              HasSubstr("got 1000001"));
  EXPECT_THAT(Generate({.noise_permille = -1}).status().message(),
              HasSubstr("noise_permille"));
  EXPECT_THAT(ParseGraphKind("gpt").status().message(),
              HasSubstr("kind \"gpt\": must be transformer, resnet, unet, moe, "
                        "diffusion-unet or layered"));
  EXPECT_EQ(*ParseGraphKind("moe"), GraphKind::kMoe);
}

}  // namespace
}  // namespace reprise::planner
