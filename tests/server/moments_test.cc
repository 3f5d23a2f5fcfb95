// SPDX-License-Identifier: Apache-2.0
//
// What a run was doing, and what memory it held, when it was killed or ran out
// of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/include/reprise_agent.h"
#include "server/store/session_rows.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr int64_t kSmallestPeak = 1024 + 8192 + 8192;

std::vector<std::string> Ops(const v1::ShownMoment& shown) {
  std::vector<std::string> names;
  for (const v1::LastOp& op : shown.ops()) {
    names.push_back(op.name() + (op.again() ? " again" : "") +
                    (op.under_way() ? " now" : ""));
  }
  return names;
}

std::vector<std::string> Held(const v1::ShownMoment& shown) {
  std::vector<std::string> names;
  for (const v1::HeldStorage& held : shown.moment().storages()) {
    names.push_back(held.name());
  }
  return names;
}

// A run of SmallGraph under the plan that recomputes x.
class MomentsTest : public ::testing::Test {
 protected:
  MomentsTest() : sender_(server_.ingest(), "s1", "run-1") {
    EXPECT_TRUE(sender_.Greet());
    v1::PlanRequest request = RequestFor(
        server_.PutGraph(SmallGraph(), "run-1"), std::to_string(kSmallestPeak));
    request.set_run_id("run-1");
    plan_ = server_.Plan(request);
  }

  v1::Moment Killed(v1::Phase phase) {
    v1::Moment moment;
    moment.set_reason(v1::MOMENT_REASON_KILLED);
    moment.set_step(7);
    moment.set_at_ns(1'000);
    moment.set_phase(phase);
    return moment;
  }
  v1::Moment KilledAt(uint32_t op, v1::Phase phase) {
    v1::Moment moment = Killed(phase);
    moment.set_graph_id(plan_.graph_id());
    moment.set_plan_id(plan_.plan_id());
    moment.set_op(op);
    return moment;
  }

  void Send(const v1::Columns& columns, uint32_t count = 0) {
    ASSERT_TRUE(sender_.SendChunk(MakeChunk(++seq_, columns, count)));
    ASSERT_TRUE(sender_.AwaitAck(seq_));
  }
  v1::GetMomentsResponse Moments(uint32_t last_ops = 0, uint32_t most = 0) {
    grpc::ClientContext context;
    v1::GetMomentsRequest request;
    request.set_run_id("run-1");
    request.set_last_ops(last_ops);
    request.set_most_storages(most);
    v1::GetMomentsResponse response;
    const grpc::Status status =
        server_.query().GetMoments(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  v1::ShownMoment Shown(const v1::Moment& moment) {
    v1::Columns columns;
    *columns.add_moments() = moment;
    Send(columns);
    const v1::GetMomentsResponse moments = Moments();
    return moments.moments_size() > 0 ? moments.moments(0) : v1::ShownMoment();
  }

  TestServer server_;
  Sender sender_;
  v1::Plan plan_;
  uint64_t seq_ = 0;
};

TEST_F(MomentsTest, ShowsTheOpsAndStoragesOfTheOpUnderThePlan) {
  const v1::ShownMoment shown = Shown(KilledAt(2, v1::PHASE_FORWARD));

  EXPECT_THAT(Ops(shown), ElementsAre("aten.op0", "aten.op1", "aten.op2 now"));
  // x was dropped after op 1: 8 + 8 + 1 KiB.
  EXPECT_THAT(Held(shown),
              ElementsAre("y", "z", "parameters, buffers and optimizer state"));
  EXPECT_EQ(shown.moment().storages(0).made_by(), "aten.op1");
  EXPECT_EQ(shown.moment().storages(0).module(), "layers.0");
  EXPECT_EQ(shown.sentence(),
            "Killed in step 7, in the forward, at op 2 aten.op2 (layers.0): "
            "17.0 KiB alive.");
  EXPECT_THAT(shown.source(), HasSubstr("along the plan"));
}

TEST_F(MomentsTest, ShowsWhatThePlanRanAgain) {
  const v1::ShownMoment shown = Shown(KilledAt(4, v1::PHASE_BACKWARD));

  EXPECT_THAT(Ops(shown),
              ElementsAre("aten.op0", "aten.op1", "aten.op2", "aten.op3",
                          "aten.op0 again", "aten.op4 now"));
}

TEST_F(MomentsTest, WithoutAPlanWhatItGivesUpIsThere) {
  v1::Moment moment = KilledAt(2, v1::PHASE_FORWARD);
  moment.clear_plan_id();

  EXPECT_THAT(
      Held(Shown(moment)),
      ElementsAre("y", "z", "x", "parameters, buffers and optimizer state"));
}

TEST_F(MomentsTest, AnOptimizerThatHasBegunIsBehindEveryBackwardOp) {
  const v1::ShownMoment shown = Shown(KilledAt(1, v1::PHASE_OPTIMIZER));

  EXPECT_EQ(Ops(shown).back(), "aten.op4 now") << "the graph has none";
}

TEST_F(MomentsTest, WithoutAnOpItIsTheFullestPointOfThePhaseAndSaysSo) {
  const v1::ShownMoment shown = Shown(Killed(v1::PHASE_BACKWARD));

  // At op 3 in base order: x 4 + z 8 + g 4, and 1 of static memory.
  EXPECT_EQ(shown.moment().live_bytes(), 1024 + 4096 + 8192 + 4096);
  EXPECT_EQ(shown.sentence(),
            "Killed in step 7, in the backward: 17.0 KiB alive.");
  EXPECT_THAT(shown.source(), HasSubstr("is not known"));
}

TEST_F(MomentsTest, BetweenTwoStepsNothingIsUnderWay) {
  v1::Columns columns;
  columns.add_steps()->set_step(7);
  Send(columns);

  const v1::ShownMoment shown = Shown(Killed(v1::PHASE_UNSPECIFIED));

  EXPECT_THAT(shown.sentence(), StartsWith("Killed after step 7"));
  EXPECT_EQ(Ops(shown).back(), "aten.op4");
}

// STEP 7, a baseline, op 70, which ends, and op 71, which does not; each op has
// an allocation, and the first one is freed.
v1::Columns TracedHalfStep() {
  v1::Columns columns;
  const auto add = [&](uint64_t at, v1::RecordKind kind, uint64_t op,
                       uint32_t name, uint64_t ptr, int64_t bytes,
                       uint64_t extra) {
    columns.add_start_ns(at);
    columns.add_kind(kind);
    columns.add_op(op);
    columns.add_name(name);
    columns.add_ptr(ptr);
    columns.add_bytes(bytes);
    columns.add_extra(extra);
  };
  add(1'000, v1::RECORD_KIND_STEP, 0, 0, 0, 0, 7);
  add(1'001, v1::RECORD_KIND_ALLOC, 0, 0, 0, 500, REPRISE_BASELINE);
  add(1'010, v1::RECORD_KIND_OP_BEGIN, 70, 1, 0, 0, 0);
  add(1'011, v1::RECORD_KIND_ALLOC, 70, 0, 0xa, 64, REPRISE_ALLOC);
  add(1'012, v1::RECORD_KIND_OP_END, 70, 0, 0, 0, 0);
  add(1'020, v1::RECORD_KIND_OP_BEGIN, 71, 2, 0, 0, 0);
  add(1'021, v1::RECORD_KIND_ALLOC, 71, 0, 0xb, 32, REPRISE_ALLOC);
  add(1'022, v1::RECORD_KIND_ALLOC, 71, 0, 0xa, -64, REPRISE_FREE);
  return columns;
}

TEST_F(MomentsTest, RecordsOfATracedStepAreBetterThanThePlan) {
  v1::Up names;
  for (const auto& [id, text] : {std::pair(1, "aten.mm"), {2, "aten.exp"}}) {
    v1::NameDef& name = *names.mutable_defs()->add_names();
    name.set_id(static_cast<uint32_t>(id));
    name.set_text(text);
  }
  ASSERT_TRUE(sender_.Write(names));
  Send(TracedHalfStep(), 8);

  const v1::ShownMoment shown = Shown(KilledAt(2, v1::PHASE_FORWARD));

  EXPECT_THAT(Ops(shown), ElementsAre("aten.mm", "aten.exp now"));
  ASSERT_EQ(shown.moment().storages_size(), 2);
  EXPECT_EQ(shown.moment().storages(0).bytes(), 500);
  EXPECT_EQ(shown.moment().storages(1).bytes(), 32);
  EXPECT_EQ(shown.moment().storages(1).made_by(), "aten.exp");
  EXPECT_EQ(shown.moment().live_bytes(), 532);
  EXPECT_THAT(shown.source(), HasSubstr("traced"));
}

TEST_F(MomentsTest, RecordsOfAnEarlierStepAreNotThoseOfThisOne) {
  Send(TracedHalfStep(), 8);
  v1::Moment moment = KilledAt(2, v1::PHASE_FORWARD);
  moment.set_step(8);
  moment.set_at_ns(2'000);

  EXPECT_EQ(Ops(Shown(moment)).back(), "aten.op2 now");
}

TEST_F(MomentsTest, WhatFilledTheMemoryComesBackAsItWasSent) {
  v1::Moment moment = KilledAt(1, v1::PHASE_FORWARD);
  moment.set_reason(v1::MOMENT_REASON_OUT_OF_MEMORY);
  moment.set_asked_bytes(4096);
  moment.set_live_bytes(2048);
  for (const int64_t bytes : {1000, 3000, 2000}) {
    moment.add_storages()->set_bytes(bytes);
  }

  const v1::ShownMoment shown = Shown(moment);

  EXPECT_EQ(shown.moment().storages(0).bytes(), 3000) << "largest first";
  EXPECT_EQ(shown.sentence(),
            "Out of memory in step 7, in the forward, at op 1 aten.op1 "
            "(layers.0), asking for 4.0 KiB: 2.0 KiB alive.");
  const v1::ShownMoment cut = Moments(1, 1).moments(0);
  EXPECT_THAT(Ops(cut), ElementsAre("aten.op1 now"));
  EXPECT_EQ(cut.moment().storages_size(), 1);
  EXPECT_EQ(cut.moment().more_storages(), 2u);
  EXPECT_EQ(cut.moment().more_bytes(), 3000);  // 2000 + 1000
}

TEST_F(MomentsTest, NewestComesFirst) {
  Shown(KilledAt(1, v1::PHASE_FORWARD));
  v1::Moment later = Killed(v1::PHASE_FORWARD);
  later.set_step(9);
  Shown(later);

  const v1::GetMomentsResponse moments = Moments();

  ASSERT_EQ(moments.moments_size(), 2);
  EXPECT_EQ(moments.moments(0).moment().step(), 9u);
}

TEST_F(MomentsTest, OneThatCannotBeIsRefused) {
  v1::Moment moment = KilledAt(1, v1::PHASE_FORWARD);
  moment.add_storages()->set_bytes(-1);
  v1::Columns columns;
  *columns.add_moments() = moment;

  ASSERT_TRUE(sender_.SendChunk(MakeChunk(1, columns, 0)));

  const grpc::Status status = sender_.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("moments[0].storages.bytes"));
  EXPECT_THAT(Moments().moments(), IsEmpty());
}

TEST_F(MomentsTest, ARunThatNeverCapturedSaysWhatIsMissing) {
  Sender other(server_.ingest(), "s2", "run-2");
  ASSERT_TRUE(other.Greet());
  v1::Columns columns;
  *columns.add_moments() = Killed(v1::PHASE_FORWARD);
  ASSERT_TRUE(other.SendChunk(MakeChunk(1, columns, 0)));
  ASSERT_TRUE(other.AwaitAck(1));

  grpc::ClientContext context;
  v1::GetMomentsRequest request;
  request.set_run_id("run-2");
  v1::GetMomentsResponse response;
  ASSERT_TRUE(server_.query().GetMoments(&context, request, &response).ok());

  ASSERT_EQ(response.moments_size(), 1);
  EXPECT_EQ(response.moments(0).sentence(),
            "Killed in step 7, in the forward.");
  EXPECT_THAT(response.moments(0).source(), HasSubstr("reprise window"));
}

}  // namespace
}  // namespace reprise::server
