// SPDX-License-Identifier: Apache-2.0
#include "formats/export/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace reprise::formats {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// Equal layers, each with a product that is dear and small, and an activation
// that is cheap and large.
planner::StepGraph Net(int layers, const std::string& stack = "layers.") {
  planner::StepGraph graph;
  const auto storage = [&](int64_t bytes) {
    graph.storages.push_back({.bytes = bytes});
    return graph.storage_count() - 1;
  };
  std::vector<planner::StorageId> in, product, wide;
  planner::StorageId x = storage(10);
  graph.ops.push_back({.time_ns = 1, .writes = {x}, .name = "input"});
  graph.ops[0].kind = planner::OpKind::kOnce;
  for (int i = 0; i < layers; ++i) {
    const std::string name = stack + std::to_string(i);
    in.push_back(x);
    product.push_back(storage(20));
    wide.push_back(storage(100));
    graph.ops.push_back({.time_ns = 100,
                         .reads = {x},
                         .writes = {product[i]},
                         .name = "aten.mm.default",
                         .module = name + ".fc"});
    graph.ops.push_back({.time_ns = 10,
                         .reads = {product[i]},
                         .writes = {wide[i]},
                         .name = "aten.gelu.default",
                         .module = name + ".act"});
    x = storage(10);
    graph.ops.push_back({.time_ns = 50,
                         .reads = {wide[i]},
                         .writes = {x},
                         .name = "aten.mm.default",
                         .module = name + ".out"});
  }
  planner::StorageId gradient = x;
  for (int i = layers - 1; i >= 0; --i) {
    const planner::StorageId next = storage(10);
    graph.ops.push_back({.time_ns = 300,
                         .phase = planner::Phase::kBackward,
                         .reads = {in[i], product[i], wide[i], gradient},
                         .writes = {next},
                         .name = "backward"});
    if (i == layers - 1)
      graph.ops.back().reads = {in[i], product[i], wide[i], x};
    gradient = next;
  }
  graph.required = {gradient};
  return graph;
}

Setting Nearest(const std::string& tool, int64_t budget_bytes) {
  const auto found = NearestSetting(tool, Net(6), {}, budget_bytes);
  EXPECT_TRUE(found.ok()) << found.status().message();
  return found.ok() ? *found : Setting{};
}

TEST(SettingsTest,
     EachToolFitsWhatItsSettingsCanAndCostsNoLessForASmallerBudget) {
  for (const std::string& tool : SettingTools()) {
    int64_t dearer = INT64_MAX;
    const int64_t least = Nearest(tool, 0).peak_bytes;
    for (int64_t budget = least; budget <= 1000; budget += 10) {
      const Setting setting = Nearest(tool, budget);
      EXPECT_TRUE(setting.fits) << tool;
      EXPECT_LE(setting.peak_bytes, budget) << tool;
      EXPECT_FALSE(setting.what.empty());
      // The kinds to save are taken one by one, so more room may mislead them.
      const bool greedy = tool.starts_with("torch") || tool == "jax-names";
      if (!greedy) {
        EXPECT_LE(setting.time_ns, dearer) << tool << " at " << budget;
        dearer = setting.time_ns;
      }
    }
    EXPECT_FALSE(Nearest(tool, least - 1).fits);
    EXPECT_EQ(Nearest(tool, least - 1).peak_bytes, least);
    EXPECT_EQ(Nearest(tool, 1000).what, "checkpoints nothing");
  }
}

TEST(SettingsTest, LayersBeyondWhatTheBudgetNeedsAreNotCheckpointed) {
  // Plain: 10 + 6 * 130 bytes and a gradient; each layer checkpointed saves 120.
  const Setting setting = Nearest("transformers", 600);

  EXPECT_EQ(setting.what, "checkpoints the first 2 of 6 layers");
  EXPECT_EQ(setting.text,
            "model.gradient_checkpointing_enable()\nfor name in [\"layers.2\", "
            "\"layers.3\", \"layers.4\", \"layers.5\"]:\n    "
            "model.get_submodule(name).gradient_checkpointing = False");
  EXPECT_EQ(Nearest("megatron", 600).text,
            "--recompute-granularity full --recompute-method block "
            "--recompute-num-layers 2");
}

TEST(SettingsTest, TorchtitanSavesItsOwnListOrAnotherAndEachSecondProduct) {
  EXPECT_EQ(Nearest("torchtitan", 0).text,
            "activation_checkpoint=FullAC.Config()");
  // In each layer the first product of two is saved.
  const Setting own = Nearest("torchtitan", 400);
  EXPECT_THAT(own.text, HasSubstr("            torch.ops.aten.mm.default,\n"));
  EXPECT_THAT(own.text, Not(HasSubstr("gelu")));
  EXPECT_EQ(own.time_ns, Nearest("torch-sac", 400).time_ns + 6 * 50);
}

TEST(SettingsTest, WhatIsDearAndSmallIsSavedFirst) {
  const Setting sac = Nearest("torch-sac", 400);
  EXPECT_EQ(sac.what, "saves 1 of 2 kinds of ops in its layers");
  EXPECT_THAT(sac.text, HasSubstr("torch.ops.aten.mm.default,"));
  EXPECT_THAT(sac.text, Not(HasSubstr("gelu")));
  const Setting names = Nearest("jax-names", 400);
  EXPECT_THAT(names.text, HasSubstr("save_only_these_names(\"fc\""));
}

TEST(SettingsTest, AStepWithoutRepeatedModulesIsOneRegionOrRefused) {
  planner::StepGraph graph = Net(3);
  for (planner::Op& op : graph.ops) op.module = "";
  for (const char* tool : {"transformers", "megatron", "torchtitan"}) {
    const auto found = NearestSetting(tool, graph, {}, 300);
    EXPECT_EQ(found.status().code(), Code::kFailedPrecondition);
    EXPECT_THAT(found.status().message(), HasSubstr("no repeated modules"));
  }
  const auto sac = NearestSetting("torch-sac", graph, {}, 300);
  ASSERT_TRUE(sac.ok());
  EXPECT_THAT(sac->text, HasSubstr("for the whole model"));
  EXPECT_THAT(sac->what, EndsWith(" in the whole forward"));
}

TEST(SettingsTest, ANameThatNoProgramCanHaveIsNotWrittenIntoOne) {
  for (const char* stack :
       {"x\"); evil(\"layers.", "a\nb.", "l\xc3\xa4yers."}) {
    for (const std::string& tool : SettingTools()) {
      const auto found = NearestSetting(tool, Net(3, stack), {}, 300);
      EXPECT_EQ(found.status().code(), Code::kFailedPrecondition) << tool;
    }
  }
  planner::StepGraph graph = Net(3);
  for (planner::Op& op : graph.ops) op.name += "];evil()";
  const auto sac = NearestSetting("torch-sac", graph, {}, 200);
  ASSERT_TRUE(sac.ok());
  EXPECT_THAT(sac->text, Not(HasSubstr("evil")));
}

TEST(SettingsTest, AToolThatIsNotKnownIsRefused) {
  EXPECT_EQ(NearestSetting("deepspeed", Net(2), {}, 1).status().code(),
            Code::kInvalidArgument);
  EXPECT_THAT(SettingTools(), ElementsAre("jax-names", "megatron", "torch-sac",
                                          "torchtitan", "transformers"));
}

}  // namespace
}  // namespace reprise::formats
