// SPDX-License-Identifier: Apache-2.0
//
// Tests of OpJoin on hand-made records: it assigns kernels to ops and ops to a
// step graph.
#include "server/collect/op_join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "reprise/v1/ingest.pb.h"
#include "server/collect/chunk_builder.h"
#include "server/collect/plan_relay.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

reprise_slot Record(uint16_t kind, uint64_t ts_ns, uint32_t thread = 1) {
  reprise_slot slot{};
  slot.kind = kind;
  slot.ts_ns = ts_ns;
  slot.thread = thread;
  return slot;
}
reprise_slot Begin(uint64_t op, uint64_t ts_ns, uint32_t thread = 1) {
  reprise_slot slot = Record(REPRISE_RECORD_OP_BEGIN, ts_ns, thread);
  slot.body.op.op = op;
  return slot;
}
reprise_slot End(uint64_t op, uint64_t ts_ns, uint32_t thread = 1) {
  reprise_slot slot = Record(REPRISE_RECORD_OP_END, ts_ns, thread);
  slot.body.op.op = op;
  return slot;
}
reprise_slot Kernel(uint32_t correlation, uint64_t start_ns, uint64_t dur_ns) {
  reprise_slot slot = Record(REPRISE_RECORD_KERNEL, start_ns, 0);
  slot.body.kernel.correlation = correlation;
  slot.body.kernel.dur = dur_ns;
  return slot;
}
reprise_slot Link(uint32_t correlation, uint64_t op) {
  reprise_slot slot = Record(REPRISE_RECORD_LINK, 1, 0);
  slot.body.api.correlation = correlation;
  slot.body.api.external_id = op;
  return slot;
}
reprise_slot Api(uint32_t correlation, uint64_t ts_ns, uint32_t thread) {
  reprise_slot slot = Record(REPRISE_RECORD_API, ts_ns, thread);
  slot.body.api.correlation = correlation;
  return slot;
}
reprise_slot Alloc(uint64_t address, int64_t bytes, uint64_t op,
                   uint32_t thread = 1) {
  reprise_slot slot = Record(REPRISE_RECORD_ALLOC, 5, thread);
  slot.body.alloc.address = address;
  slot.body.alloc.bytes = bytes;
  slot.body.alloc.op = op;
  slot.body.alloc.what = bytes > 0 ? REPRISE_ALLOC : REPRISE_FREE;
  return slot;
}

OpFigures Of(OpJoin& join, uint64_t op) {
  const auto measured = join.Measure();
  const auto found = measured->ops.find(op);
  return found == measured->ops.end() ? OpFigures{} : found->second;
}

TEST(OpJoinTest, AnOpTakesAsLongAsItsKernels) {
  OpJoin join;
  for (const auto& slot : {Begin(7, 10), End(7, 20), Link(1, 7), Link(2, 7),
                           Kernel(1, 100, 30), Kernel(2, 200, 12)}) {
    join.Take(slot);
  }
  EXPECT_EQ(Of(join, 7).kernel_ns, 42u);
  EXPECT_EQ(Of(join, 7).kernels, 2u);
  EXPECT_EQ(Of(join, 7).first_ns, 100u);
  EXPECT_EQ(Of(join, 7).last_ns, 212u);
  EXPECT_EQ(join.OpOf(1), 7u);
  EXPECT_EQ(join.OpOf(3), 0u);
}

TEST(OpJoinTest, TheOrderOfRecordsDoesNotMatter) {
  std::vector<reprise_slot> records;
  for (uint32_t i = 1; i <= 500; ++i) {
    records.push_back(Link(i, 1 + i % 10));
    records.push_back(Kernel(i, 1000 * i, i));
  }
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(records.begin(), records.end(), random);
    OpJoin join;
    for (const auto& slot : records) join.Take(slot);
    uint64_t total = 0;
    for (uint64_t op = 1; op <= 10; ++op) total += Of(join, op).kernel_ns;
    EXPECT_EQ(total, 500u * 501 / 2);
    EXPECT_EQ(join.unattributed(), 0u);
  }
}

TEST(OpJoinTest, WithoutLinksTheLaunchsThreadAndTimeDecide) {
  OpJoin join;
  // Op 1 encloses op 2 on thread 1; op 3 runs on autograd's thread meanwhile.
  for (const auto& slot :
       {Begin(1, 100), Begin(2, 110), End(2, 120), End(1, 150), Begin(3, 90, 2),
        End(3, 160, 2), Api(10, 115, 1), Api(11, 130, 1), Api(12, 130, 2),
        Api(13, 155, 1), Kernel(10, 500, 1), Kernel(11, 600, 2),
        Kernel(12, 700, 4), Kernel(13, 800, 8)}) {
    join.Take(slot);
  }
  EXPECT_EQ(Of(join, 2).kernel_ns, 1u);  // the innermost op
  EXPECT_EQ(Of(join, 1).kernel_ns, 2u);
  EXPECT_EQ(Of(join, 3).kernel_ns, 4u);
}

TEST(OpJoinTest, KernelsOfACudaGraphBelongToTheOpThatLaunchedIt) {
  OpJoin join;
  join.Take(Link(5, 9));
  for (int node = 0; node < 3; ++node) {
    reprise_slot kernel = Kernel(5, 100, 10);
    kernel.body.kernel.graph_id = 4;
    kernel.body.kernel.flags = REPRISE_KERNEL_IN_GRAPH;
    join.Take(kernel);
  }
  EXPECT_EQ(Of(join, 9).kernel_ns, 30u);
  EXPECT_EQ(Of(join, 9).kernels, 3u);
}

TEST(OpJoinTest, WorkspaceIsWhatAnOpHeldAboveWhatItLeaves) {
  OpJoin join;
  // Allocates 100 bytes for itself and 8 for its output; frees an input of 50.
  for (const auto& slot :
       {Begin(1, 10), Alloc(0xa, 100, 1), Alloc(0xb, 8, 1), Alloc(0xc, -50, 1),
        Alloc(0xa, -100, 1), End(1, 20)}) {
    join.Take(slot);
  }
  // It held 108 at most and left 8 behind.
  EXPECT_EQ(Of(join, 1).workspace_bytes, 100);
}

TEST(OpJoinTest, WorkspaceCountsForTheOpsAroundToo) {
  OpJoin join;
  for (const auto& slot :
       {Begin(1, 10), Alloc(0xa, 10, 1), Begin(2, 11), Alloc(0xb, 100, 2),
        Alloc(0xb, -100, 2), End(2, 12), End(1, 20)}) {
    join.Take(slot);
  }
  EXPECT_EQ(Of(join, 2).workspace_bytes, 100);
  EXPECT_EQ(Of(join, 1).workspace_bytes, 100);
}

TEST(OpJoinTest, AnOpThatThrewEndsWithTheOneAround) {
  OpJoin join;
  for (const auto& slot : {Begin(1, 10), Begin(2, 11), Alloc(0xa, 64, 2),
                           End(1, 20), Alloc(0xb, 32, 1)}) {
    join.Take(slot);
  }
  EXPECT_EQ(Of(join, 2).workspace_bytes, 0);
  EXPECT_EQ(Of(join, 1).workspace_bytes, 0);
}

TEST(OpJoinTest, AnUntimedKernelMakesTheMeasurementIncomplete) {
  OpJoin join;
  join.Take(Begin(1, 10));
  EXPECT_EQ(join.Measure()->last_loss_ns, 0u);
  reprise_slot kernel = Kernel(1, 100, 0);
  kernel.body.kernel.flags = REPRISE_KERNEL_UNTIMED;
  join.Take(kernel);
  EXPECT_GT(join.Measure()->last_loss_ns, 0u);
}

TEST(OpJoinTest, ForgetsWhatIsOldAndStaysBounded) {
  OpJoin join;
  for (uint32_t i = 0; i < 4 * OpJoin::kLaunches; ++i) {
    join.Take(Begin(i, i, i % 500));
    join.Take(Kernel(i, i, 1));
    join.Take(Alloc(i, 1, i, i % 500));
    join.Take(End(i, i + 1, i % 500));
    join.Take(Begin(i, i, i));  // more threads than OpJoin follows
    join.Take(Begin(i, i, 3));  // more nested ops than OpJoin follows
  }
  const auto measured = join.Measure();
  EXPECT_EQ(measured->ops.size(), OpJoin::kOps);
  EXPECT_EQ(measured->kernels.size(), OpJoin::kIntervals);
  EXPECT_EQ(join.unattributed(), 3u * OpJoin::kLaunches);
}

// ---- Rows and graphs ----

TEST(OpJoinTest, RowsOfKernelsSayTheirOpAndTheirGraph) {
  OpJoin join;
  std::vector<reprise_slot> records = {Link(1, 7), Kernel(1, 10, 5),
                                       Kernel(2, 20, 5)};
  records[1].body.kernel.graph_id = 3;
  for (const auto& slot : records) join.Take(slot);
  const NameTable names;
  const Built built =
      BuildChunks({.records = records, .names = &names, .join = &join});
  ASSERT_EQ(built.chunks.size(), 1u);
  v1::Columns columns;
  ASSERT_TRUE(columns.ParseFromString(built.chunks[0].body()));
  EXPECT_THAT(columns.op(), ::testing::ElementsAre(7, 7, 0));
  EXPECT_THAT(columns.graph(), ::testing::ElementsAre(0, 3, 0));
}

// Three ops of a step of 1,000 ns; the middle one is fused from two.
v1::StepGraph ThreeOps() {
  v1::StepGraph graph;
  graph.set_measured_step_ns(1000);
  const auto add = [&graph](const char* name, std::vector<uint64_t> ids) {
    v1::Op& op = *graph.add_ops();
    op.set_name(name);
    op.set_time_ns(1);
    op.set_workspace_bytes(3);
    for (const uint64_t id : ids) op.add_agent_ops(id);
  };
  add("reprise.step_begin", {});
  add("aten.mm.default", {11});
  add("aten.addmm.default", {12, 13});
  add("aten.view.default", {14});
  return graph;
}

TEST(GraphMeasurementTest, TimesAndWorkspaceOfTheDeviceReplaceTheHosts) {
  OpJoin join;
  for (const auto& slot :
       {Begin(11, 10), Alloc(1, 500, 11), Alloc(1, -500, 11), End(11, 20),
        Begin(12, 20), End(12, 30), Begin(13, 30), End(13, 40), Begin(14, 40),
        End(14, 50), Link(1, 11), Link(2, 12), Link(3, 13), Kernel(1, 100, 200),
        Kernel(2, 350, 100), Kernel(3, 440, 60)}) {
    join.Take(slot);
  }
  v1::StepGraph graph = ThreeOps();
  ApplyMeasurement(*join.Measure(), graph);

  EXPECT_EQ(graph.timing(), "kernels");
  EXPECT_EQ(graph.ops(1).time_ns(), 200);
  EXPECT_EQ(graph.ops(1).workspace_bytes(), 500);
  EXPECT_EQ(graph.ops(2).time_ns(), 160);
  EXPECT_EQ(graph.ops(2).workspace_bytes(), 3);  // allocated nothing itself
  EXPECT_EQ(graph.ops(3).time_ns(), 0);
  // Kernels run in [100, 300) and [350, 500): 50 of 400 ns idle.
  EXPECT_EQ(graph.launch_gap_ns(), 50);
  // Op 0 gets the rest of the step: 1000 - 200 - 160.
  EXPECT_EQ(graph.ops(0).time_ns(), 640);
}

// Records the ops of ThreeOps, from 10 ns to 50 ns.
void TakeThreeOps(OpJoin& join) {
  for (uint64_t op = 11; op <= 14; ++op) {
    join.Take(Begin(op, 10 * (op - 10)));
    join.Take(End(op, 10 * (op - 9)));
  }
}

reprise_slot LossUntil(uint64_t last_ns) {
  reprise_slot loss = Record(REPRISE_RECORD_LOSS, last_ns - 1);
  loss.body.loss.last_ts = last_ns;
  loss.body.loss.count = 4;
  return loss;
}

TEST(GraphMeasurementTest, TheHostsTimesStayWhereRecordsAreMissing) {
  OpJoin join;
  TakeThreeOps(join);
  for (const auto& slot : {Link(1, 11), Kernel(1, 100, 200), LossUntil(16)}) {
    join.Take(slot);
  }
  v1::StepGraph graph = ThreeOps();
  ApplyMeasurement(*join.Measure(), graph);

  EXPECT_EQ(graph.ops(1).time_ns(), 1);
  EXPECT_THAT(graph.timing(), HasSubstr("host: records"));
}

TEST(GraphMeasurementTest, WhatWasLostBeforeTheStepBeganIsNotMissingFromIt) {
  OpJoin join;
  join.Take(Begin(3, 5));  // left from an earlier window
  TakeThreeOps(join);
  for (const auto& slot : {Link(1, 11), Kernel(1, 100, 200), LossUntil(9)}) {
    join.Take(slot);
  }
  v1::StepGraph graph = ThreeOps();
  ApplyMeasurement(*join.Measure(), graph);

  EXPECT_EQ(graph.timing(), "kernels");
  EXPECT_EQ(graph.ops(1).time_ns(), 200);
}

// A graph that mixes device times with missing ones would be wrong, so it keeps
// the host's times.
TEST(GraphMeasurementTest, TheHostsTimesStayWhereOneOpIsNotKnown) {
  OpJoin join;
  for (const auto& slot :
       {Begin(11, 10), End(11, 20), Link(1, 11), Kernel(1, 100, 200),
        Link(2, 12), Kernel(2, 300, 10)}) {
    join.Take(slot);
  }
  v1::StepGraph graph = ThreeOps();
  ApplyMeasurement(*join.Measure(), graph);

  EXPECT_EQ(graph.ops(1).time_ns(), 1);
  EXPECT_THAT(graph.timing(), HasSubstr("host: records"));
}

TEST(GraphMeasurementTest, WithoutKernelsOnlyTheWorkspaceIsTaken) {
  OpJoin join;
  for (const auto& slot :
       {Begin(11, 10), Alloc(1, 9, 11), Alloc(1, -9, 11), End(11, 20),
        Begin(12, 20), Alloc(1, 2, 12), Alloc(1, -2, 12), End(12, 30),
        Begin(13, 30), End(13, 40), Begin(14, 40), End(14, 50)}) {
    join.Take(slot);
  }
  v1::StepGraph graph = ThreeOps();
  ApplyMeasurement(*join.Measure(), graph);

  EXPECT_EQ(graph.ops(1).time_ns(), 1);
  EXPECT_EQ(graph.ops(1).workspace_bytes(), 9);
  EXPECT_EQ(graph.ops(2).workspace_bytes(), 3);  // the graph had more
  EXPECT_THAT(graph.timing(), HasSubstr("no kernel"));
}

// ---- Kernels that lie where they cannot have run ----

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMs;

// A step of `ops` ops that begin every ms from 100 s on, each with a kernel of
// 500 ns that runs `after_ns` after its op has begun.
struct Step {
  OpJoin join;
  v1::StepGraph graph;
  uint32_t correlation = 0;

  void Add(uint64_t op, int64_t after_ns) {
    const uint64_t begin_ns = 100 * kSecond + op * kMs;
    join.Take(Begin(op, begin_ns));
    join.Take(End(op, begin_ns + 1000));
    join.Take(Link(++correlation, op));
    join.Take(
        Kernel(correlation, begin_ns + static_cast<uint64_t>(after_ns), 500));
    v1::Op& added = *graph.add_ops();
    added.set_name("aten.mm.default");
    added.set_time_ns(1);
    added.add_agent_ops(op);
  }
  Step& Apply() {
    graph.set_measured_step_ns(static_cast<int64_t>(kSecond));
    ApplyMeasurement(*join.Measure(), graph);
    return *this;
  }
};

TEST(GraphMeasurementTest, KernelsThatBeginBeforeTheirOpsAreNotUsed) {
  Step step;
  for (uint64_t op = 1; op <= 40; ++op) {
    step.Add(op, op <= 3 ? -int64_t{2 * kMs} : 5000);
  }

  step.Apply();

  EXPECT_EQ(step.graph.timing(),
            "host: kernels lie far from their ops: of 40 ops with kernels, 3 "
            "have one that begins before the op, 0 one that ends long after "
            "the step");
  EXPECT_EQ(step.graph.ops(9).time_ns(), 1);
  EXPECT_EQ(step.graph.launch_gap_ns(), 0);
}

TEST(GraphMeasurementTest, KernelsThatEndLongAfterTheStepAreNotUsed) {
  Step step;
  for (uint64_t op = 1; op <= 40; ++op) {
    step.Add(op, int64_t{1'700'000'000 * kSecond});
  }

  step.Apply();

  EXPECT_THAT(step.graph.timing(),
              HasSubstr("of 40 ops with kernels, 0 have one that begins before "
                        "the op, 40 one that ends long after the step"));
  EXPECT_EQ(step.graph.ops(9).time_ns(), 1);
}

// The host may be ahead of the device by all that it has launched in this step
// and in the one before, of one second each.
TEST(GraphMeasurementTest, AFullQueueOfLaunchesIsNotFarAway) {
  Step step;
  for (uint64_t op = 1; op <= 40; ++op) step.Add(op, int64_t{2 * kSecond});

  step.Apply();

  EXPECT_EQ(step.graph.timing(), "kernels");
  EXPECT_EQ(step.graph.ops(9).time_ns(), 500);
}

// Two clocks are never read at the same time, and one odd op among many does
// not spoil the others.
TEST(GraphMeasurementTest, AKernelThatIsALittleEarlyOrAloneIsUsed) {
  Step step;
  for (uint64_t op = 1; op <= 40; ++op) {
    step.Add(op, op == 7 ? -int64_t{50 * kMs} : -int64_t{kMs / 2});
  }

  step.Apply();

  EXPECT_EQ(step.graph.timing(), "kernels");
  EXPECT_EQ(step.graph.ops(9).time_ns(), 500);
}

// A kernel that seems to take an hour is a record that cannot be true, and
// neither can its time: steps that come later are complete.
TEST(GraphMeasurementTest, AnImpossibleKernelSpoilsItsOwnStepOnly) {
  Step step;
  step.join.Take(Begin(500, 50 * kSecond));
  step.join.Take(Link(900, 500));
  step.join.Take(Kernel(900, 1'700'000'000 * kSecond, 3600 * kSecond));
  for (uint64_t op = 1; op <= 40; ++op) step.Add(op, 5000);

  step.Apply();

  EXPECT_EQ(step.graph.timing(), "kernels");
}

TEST(GraphMeasurementTest, AGraphThatAsksForNothingStaysAsItIs) {
  OpJoin join;
  join.Take(Begin(11, 10));
  v1::StepGraph graph = ThreeOps();
  for (v1::Op& op : *graph.mutable_ops()) op.clear_agent_ops();
  const std::string before = graph.SerializeAsString();
  ApplyMeasurement(*join.Measure(), graph);
  EXPECT_EQ(graph.SerializeAsString(), before);
}

}  // namespace
}  // namespace reprise::server
