// SPDX-License-Identifier: Apache-2.0
//
// Another budget for a job that runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiler/include/reprise_agent.h"
#include "tests/server/log_lines.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBasePeak = 1024 + 4096 + 8192 + 8192;
constexpr int64_t kSmallestPeak = 1024 + 8192 + 8192;

class RunningJob : public ::testing::Test {
 protected:
  RunningJob()
      : control_(v1::Control::NewStub(server_.channel())),
        sender_(server_.ingest(), "s1", "run-1") {
    sender_.hello.mutable_info()->set_pid(7);
  }

  void Start(bool takes_plans = true) {
    if (takes_plans) {
      (*sender_.hello.mutable_info()->mutable_labels())["apply"] = "yes";
    }
    ASSERT_TRUE(sender_.Greet());
    graph_id_ = server_.PutGraph(SmallGraph(), "run-1");
  }

  // The job reports that it runs a plan within this budget.
  v1::Plan RunUnder(int64_t budget) {
    v1::PlanRequest request = RequestFor(graph_id_, std::to_string(budget));
    request.set_run_id("run-1");
    const v1::Plan plan = server_.Plan(request);
    v1::Columns columns;
    v1::PlanState& state = *columns.add_states();
    state.set_plan_id(plan.plan_id());
    state.set_state(REPRISE_PLAN_APPLIED);
    EXPECT_TRUE(sender_.SendChunk(MakeChunk(++seq_, columns, 0)));
    EXPECT_TRUE(sender_.AwaitAck(seq_));
    return plan;
  }

  grpc::Status Apply(const std::string& budget, v1::Plan* plan) {
    grpc::ClientContext context;
    v1::ApplyBudgetRequest request;
    request.set_run_id("run-1");
    request.set_budget(budget);
    const auto stream = control_->ApplyBudget(&context, request);
    for (v1::PlanEvent event; stream->Read(&event);) {
      if (event.has_plan()) *plan = event.plan();
    }
    return stream->Finish();
  }

  TestServer server_;
  std::unique_ptr<v1::Control::Stub> control_;
  Sender sender_;
  std::string graph_id_;
  uint64_t seq_ = 0;
};

TEST_F(RunningJob, IsSentAPlanWithinAnotherBudget) {
  Start();
  const v1::Plan before = RunUnder(kBasePeak);
  v1::Plan plan;

  ASSERT_TRUE(Apply(std::to_string(kSmallestPeak), &plan).ok());

  const std::optional<v1::Down> down = sender_.Read();
  ASSERT_TRUE(down && down->has_plan());
  EXPECT_EQ(down->plan().replaces(), before.plan_id());
  EXPECT_EQ(down->plan().plan().plan_id(), plan.plan_id());
  EXPECT_EQ(down->plan().plan().budget_bytes(), kSmallestPeak);
  EXPECT_EQ(server_.GetRun("run-1").plan_id(), plan.plan_id());
}

TEST_F(RunningJob, KeepsItsPlanWhenNothingFitsTheOther) {
  Start();
  const v1::Plan before = RunUnder(kBasePeak);
  v1::Plan plan;

  ASSERT_TRUE(Apply("1000", &plan).ok());

  EXPECT_FALSE(plan.feasible());
  EXPECT_THAT(plan.sentence(), HasSubstr("Nothing fits"));
  EXPECT_EQ(server_.GetRun("run-1").plan_id(), before.plan_id());
}

TEST_F(RunningJob, WithoutAPlanIsSentOnlyTheBudget) {
  Start();
  v1::Plan plan;

  ASSERT_TRUE(Apply(std::to_string(kBasePeak), &plan).ok());

  const std::optional<v1::Down> down = sender_.Read();
  ASSERT_TRUE(down && down->has_plan());
  EXPECT_EQ(down->plan().replaces(), "");
  EXPECT_EQ(down->plan().plan().budget(), std::to_string(kBasePeak));
  // Its own plan comes from the job.
  EXPECT_EQ(server_.GetRun("run-1").plan_id(), "");
}

TEST_F(RunningJob, ThatTakesNoPlanSaysWhy) {
  Start(/*takes_plans=*/false);
  v1::Plan plan;
  LogLines log;

  const grpc::Status status = Apply("1GiB", &plan);

  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              HasSubstr("its executor takes a plan only when it starts"));
  const auto change = log.OnlyChange();
  EXPECT_EQ(change["action"], "apply-budget");
  EXPECT_EQ(change["outcome"], "failed_precondition");
}

TEST_F(RunningJob, ThatHasEndedTakesNone) {
  Start();
  RunUnder(kBasePeak);
  sender_.Bye();
  ASSERT_TRUE(Eventually([&] {
    return server_.GetRun("run-1").state() == v1::RUN_STATE_FINISHED;
  }));
  v1::Plan plan;

  const grpc::Status status = Apply("1GiB", &plan);

  EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("has ended"));
}

}  // namespace
}  // namespace reprise::server
