// SPDX-License-Identifier: Apache-2.0
#include "planner/model/step_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "planner/model/versions.h"

namespace reprise::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StepGraph Valid() {
  StepGraph graph;
  graph.storages = {{.bytes = 4}, {.bytes = 8}};
  graph.ops = {{.time_ns = 1, .writes = {0, 1}, .name = "make"},
               {.time_ns = 2, .reads = {0, 1}, .mutates = {1}, .name = "use"}};
  graph.required = {1};
  return graph;
}

std::string ErrorAfter(const std::function<void(StepGraph&)>& damage) {
  StepGraph graph = Valid();
  damage(graph);
  const Status status = Validate(graph);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  return status.message();
}

TEST(ValidateTest, AcceptsAStepGraphAndAnEmptyOne) {
  EXPECT_EQ(Validate(Valid()), OkStatus());
  EXPECT_EQ(Validate({}), OkStatus());
}

TEST(ValidateTest, NamesTheOpOrStorageThatIsWrong) {
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.ops[1].reads = {7}; }),
              HasSubstr("ops[1] (use).reads: there is no storage 7"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.ops[1].reads = {-1}; }),
              HasSubstr("there is no storage -1"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.ops[0].reads = {0}; }),
              HasSubstr("is not written by an earlier op"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.ops[1].writes = {0}; }),
              HasSubstr("already written by ops[0]"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) {
                g.ops[1].reads = {0, 0};
              }),
              HasSubstr("twice"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) {
                g.ops[1].mutates = {1, 1};
              }),
              HasSubstr("twice"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.ops[1].reads = {0}; }),
              HasSubstr("mutates: storage 1 is not in the reads"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.ops[1].mutates = {9}; }),
              HasSubstr("mutates: storage 9"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.ops[0].writes = {0}; }),
              HasSubstr("storage 1 is not written"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.storages.push_back({}); }),
              HasSubstr("storages[2]: no op writes it"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.storages[0].bytes = -1; }),
              HasSubstr("storages[0].bytes: must not be negative, got -1"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.static_bytes = -1; }),
              HasSubstr("static_bytes"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.ops[0].time_ns = -1; }),
              HasSubstr("time_ns: must not be negative"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.ops[0].workspace_bytes = -1; }),
              HasSubstr("workspace_bytes"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.required = {2}; }),
              HasSubstr("required: there is no storage 2"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) { g.storages[0].release_op = 2; }),
              HasSubstr("release_op: op 2"));
}

TEST(ValidateTest, RefusesSumsThatOverflow) {
  EXPECT_THAT(ErrorAfter([](StepGraph& g) {
                g.storages[0].bytes = g.storages[1].bytes = int64_t{1} << 62;
              }),
              HasSubstr("more than 2^62"));
  EXPECT_THAT(ErrorAfter([](StepGraph& g) {
                g.ops[0].time_ns = g.ops[1].time_ns = int64_t{1} << 62;
              }),
              HasSubstr("time_ns sum"));
}

TEST(VersionsTest, AMutationMakesTheNextVersion) {
  const Versions versions = WalkVersions(Valid());

  // Values: 0 is storage 0; 1 and 2 are the versions of storage 1.
  EXPECT_EQ(versions.value_count(), 3);
  EXPECT_THAT(versions.Need(1), ElementsAre(0, 1));
  EXPECT_THAT(versions.Make(1), ElementsAre(2));
  EXPECT_EQ(versions.Number(2), 2);
  EXPECT_EQ(versions.maker[2], 1);
}

}  // namespace
}  // namespace reprise::planner
