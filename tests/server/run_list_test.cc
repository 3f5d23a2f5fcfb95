// SPDX-License-Identifier: Apache-2.0
//
// The list of runs, how each one ended, and steps in buckets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/str_cat.h"
#include "profiler/include/reprise_agent.h"
#include "server/service/runs/verdict.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- How a run ended ----

std::string EndingOf(v1::Run run) {
  Describe(run);
  return run.ending();
}

v1::Run Ended(v1::RunState state, int32_t exit_code, int32_t signal = 0) {
  v1::Run run;
  run.set_state(state);
  run.mutable_process_end()->set_exit_code(exit_code);
  run.mutable_process_end()->set_signal(signal);
  return run;
}

TEST(StandingTest, EveryEndHasItsOwnWords) {
  EXPECT_EQ(EndingOf(Ended(v1::RUN_STATE_FINISHED, 0)), "finished");
  EXPECT_EQ(EndingOf(Ended(v1::RUN_STATE_FAILED, 3)),
            "failed with exit code 3");
  EXPECT_EQ(EndingOf(Ended(v1::RUN_STATE_KILLED, 137, 9)),
            "killed by signal 9");
  v1::Run oom = Ended(v1::RUN_STATE_FAILED, 1);
  oom.mutable_verdict()->set_failure("CUDA out of memory. Tried to allocate");
  EXPECT_EQ(EndingOf(oom), "out of memory");
  v1::Run unknown;
  unknown.set_state(v1::RUN_STATE_KILLED);
  EXPECT_EQ(EndingOf(unknown), "killed");
}

TEST(StandingTest, ARefusedRunThatTrainedOnSaysSo) {
  v1::Run run = Ended(v1::RUN_STATE_FINISHED, 0);
  run.set_plan_id("00000000000000aa");
  run.mutable_verdict()->set_unplanned_steps(60);
  Describe(run);

  EXPECT_EQ(run.ending(), "refused, trained on");
  EXPECT_EQ(run.standing(), v1::STANDING_IMPOSSIBLE);
}

TEST(StandingTest, ADeadRunIsNeverValidated) {
  for (const v1::RunState state :
       {v1::RUN_STATE_KILLED, v1::RUN_STATE_FAILED}) {
    v1::Run run = Ended(state, 1);
    run.set_plan_id("00000000000000aa");
    run.mutable_verdict()->set_feasible(true);
    run.mutable_verdict()->set_validated(true);
    Describe(run);
    EXPECT_EQ(run.standing(), v1::STANDING_DIED);
  }
}

TEST(StandingTest, APlanThatDidNotHoldIsNotMeasuring) {
  const auto standing = [](const std::function<void(v1::Verdict&)>& change) {
    v1::Run run;
    run.set_state(v1::RUN_STATE_RUNNING);
    run.set_plan_id("00000000000000aa");
    run.mutable_verdict()->set_feasible(true);
    change(*run.mutable_verdict());
    Describe(run);
    return run.standing();
  };
  EXPECT_EQ(standing([](v1::Verdict&) {}), v1::STANDING_MEASURING);
  EXPECT_EQ(standing([](v1::Verdict& v) { v.set_validated(true); }),
            v1::STANDING_VALIDATED);
  EXPECT_EQ(standing([](v1::Verdict& v) { v.set_mismatches(2); }),
            v1::STANDING_NOT_HELD);
  EXPECT_EQ(standing([](v1::Verdict& v) { v.set_checks_differing(1); }),
            v1::STANDING_NOT_HELD);
  EXPECT_EQ(standing([](v1::Verdict& v) { v.set_over_budget_steps(1); }),
            v1::STANDING_NOT_HELD);
  EXPECT_EQ(standing([](v1::Verdict& v) { v.set_withdrawn("it differs"); }),
            v1::STANDING_NOT_HELD);
  EXPECT_EQ(standing([](v1::Verdict& v) { v.set_refused("not here"); }),
            v1::STANDING_NOT_HELD);
}

TEST(StandingTest, AnImportedFileIsNoRunThatEnded) {
  v1::Run run;
  run.set_state(v1::RUN_STATE_FINISHED);
  run.set_imported("memory snapshot");
  Describe(run);

  EXPECT_EQ(run.standing(), v1::STANDING_IMPORTED);
  EXPECT_EQ(run.ending(), "imported");
}

// ---- Steps in buckets ----

v1::StepReport Step(uint64_t number, int64_t peak, int64_t ns, bool planned) {
  v1::StepReport step;
  step.set_step(number);
  step.set_peak_bytes(peak);
  step.set_step_ns(ns);
  step.set_planned(planned);
  return step;
}

TEST(StepLogTest, NoPeakIsLostInABucket) {
  StepLog log;
  for (uint64_t i = 1; i <= 1000; ++i) {
    log.Add(Step(i, i == 577 ? 9000 : 100, static_cast<int64_t>(i), true),
            /*over_budget=*/i == 577);
  }

  const v1::StepBuckets folded = log.Fold(0, 1000, 10);

  EXPECT_EQ(folded.steps(), 1000U);
  EXPECT_EQ(folded.planned_steps(), 1000U);
  ASSERT_EQ(folded.first_size(), 10);
  EXPECT_EQ(folded.first(5), 501U);
  EXPECT_EQ(folded.last(5), 600U);
  EXPECT_EQ(folded.planned_peak_bytes(5), 9000);
  EXPECT_EQ(folded.over_budget(5), 1U);
  EXPECT_EQ(folded.planned_peak_bytes(4), 100);
  EXPECT_EQ(folded.planned_ns(0), 51);  // the upper median of 1 to 100
  EXPECT_EQ(folded.longest_ns(0), 100);
}

TEST(StepLogTest, APartOfTheRunComesStepByStep) {
  StepLog log;
  for (uint64_t i = 1; i <= 1000; ++i) log.Add(Step(i, 10, 20, i > 3), false);

  const v1::StepBuckets part = log.Fold(2, 5, 100);

  EXPECT_THAT(part.first(), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(part.plain(), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(part.planned(), ElementsAre(0, 0, 1, 1));
}

TEST(StepLogTest, TracedAndCheckedStepsDoNotCountForTheMedian) {
  StepLog log;
  log.Add(Step(1, 10, 20, true), false);
  v1::StepReport traced = Step(2, 10, 900, true);
  traced.set_window(true);
  log.Add(traced, false);
  log.Add(Step(3, 10, 800, true), false);
  v1::VerifyReport check;
  check.set_step(3);
  check.set_bitwise(true);
  log.Add(check);

  const v1::StepBuckets one = log.Fold(0, 9, 1);

  EXPECT_THAT(one.planned_ns(), ElementsAre(20));
  EXPECT_THAT(one.traced(), ElementsAre(1));
  EXPECT_THAT(one.checks(), ElementsAre(1));
  EXPECT_THAT(one.checks_differing(), ElementsAre(0));
}

TEST(StepLogTest, AStepOfASecondRankCountsOnce) {
  StepLog log;
  log.Add(Step(1, 10, 20, true), false);
  log.Add(Step(1, 99, 20, true), false);

  EXPECT_EQ(log.Fold(0, 9, 1).steps(), 1U);
}

// ---- The list ----

class Listed : public ::testing::Test {
 protected:
  Listed() : control_(v1::Control::NewStub(server_.channel())) {}

  // Ten steps of a job that then ends.
  void AddRun(const std::string& run_id, const std::string& name,
              int64_t started_ns, int64_t peak_bytes) {
    Sender sender(server_.ingest(), StrCat("s-", run_id), run_id);
    (*sender.hello.mutable_info()->mutable_labels())["name"] = name;
    sender.hello.mutable_info()->set_realtime_ns(started_ns);
    ASSERT_TRUE(sender.Greet());
    std::vector<v1::StepReport> steps;
    for (uint64_t i = 1; i <= 10; ++i) {
      steps.push_back(Step(i, peak_bytes, 5, false));
    }
    ASSERT_TRUE(sender.SendChunk(StepChunk(1, steps)));
    ASSERT_TRUE(sender.AwaitAck(1));
    sender.Bye();
    sender.Finish();
    ASSERT_TRUE(Eventually([&] {
      return server_.GetRun(run_id).state() != v1::RUN_STATE_RUNNING;
    }));
  }

  grpc::Status ReportEnd(const std::string& run_id, int32_t exit_code) {
    grpc::ClientContext context;
    v1::ReportEndRequest request;
    request.set_run_id(run_id);
    request.mutable_end()->set_exit_code(exit_code);
    v1::ReportEndResponse response;
    return control_->ReportEnd(&context, request, &response);
  }

  v1::ListRunsResponse List(const v1::ListRunsRequest& request) {
    // The list is read at most every half second.
    v1::ListRunsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(server_.query().ListRuns(&context, request, &response).ok());
    return response;
  }

  static std::string IdsOf(const v1::ListRunsResponse& response) {
    std::string ids;
    for (const v1::Run& run : response.runs()) ids += run.run_id();
    return ids;
  }

  TestServer server_;
  std::unique_ptr<v1::Control::Stub> control_;
};

TEST_F(Listed, IsSearchedSortedGroupedAndCutByTheServer) {
  AddRun("a", "gpt", 10, 700);
  AddRun("b", "resnet", 20, 900);
  AddRun("c", "gpt", 30, 800);
  ASSERT_TRUE(ReportEnd("b", 3).ok());

  v1::ListRunsRequest request;
  const v1::ListRunsResponse all = List(request);
  EXPECT_EQ(IdsOf(all), "cba");
  EXPECT_EQ(all.total(), 3U);
  EXPECT_EQ(all.runs(1).ending(), "failed with exit code 3");
  EXPECT_EQ(all.runs(0).verdict().unplanned_peak_bytes(), 800);
  ASSERT_EQ(all.standings_size(), 2);
  EXPECT_EQ(all.standings(0).standing(), v1::STANDING_UNPLANNED);
  EXPECT_EQ(all.standings(0).runs(), 2U);

  request.set_order(v1::RUN_ORDER_PEAK);
  EXPECT_EQ(IdsOf(List(request)), "bca");
  request.set_ascending(true);
  EXPECT_EQ(IdsOf(List(request)), "acb");
  request.set_offset(1);
  request.set_limit(1);
  EXPECT_EQ(IdsOf(List(request)), "c");

  v1::ListRunsRequest search;
  search.set_search("GPT finished");
  EXPECT_EQ(IdsOf(List(search)), "ca");
  search.set_search("exit code 3");
  const v1::ListRunsResponse found = List(search);
  EXPECT_EQ(IdsOf(found), "b");
  EXPECT_EQ(found.matched(), 1U);
  EXPECT_EQ(found.total(), 3U);

  v1::ListRunsRequest dead;
  dead.set_standing(v1::STANDING_DIED);
  EXPECT_EQ(IdsOf(List(dead)), "b");
  v1::ListRunsRequest grouped;
  grouped.set_grouping(v1::RUN_GROUPING_NAME);
  EXPECT_EQ(IdsOf(List(grouped)), "cab");
}

TEST_F(Listed, VerdictsOfRunsThatAreOverAreStoredAndFollowNewReports) {
  AddRun("a", "gpt", 10, 700);

  EXPECT_EQ(List({}).runs(0).verdict().unplanned_peak_bytes(), 700);
  EXPECT_EQ(server_.CountRows("SELECT count(*) FROM verdicts"), 1);
  server_.Stop();
  server_.Start();
  EXPECT_EQ(List({}).runs(0).verdict().unplanned_peak_bytes(), 700);

  // A report that comes later makes the stored one out of date.
  Sender sender(server_.ingest(), "s-a", "a");
  ASSERT_TRUE(sender.Greet());
  ASSERT_TRUE(sender.SendChunk(StepChunk(2, {Step(11, 950, 5, false)})));
  ASSERT_TRUE(sender.AwaitAck(2));
  sender.Bye();
  sender.Finish();
  EXPECT_TRUE(Eventually([&] {
    const v1::ListRunsResponse list = List({});
    return list.runs(0).verdict().unplanned_peak_bytes() == 950;
  }));
}

TEST_F(Listed, AnExitCodeMakesAFinishedRunAFailedOne) {
  AddRun("a", "gpt", 10, 700);

  ASSERT_TRUE(ReportEnd("a", 0).ok());
  EXPECT_EQ(server_.GetRun("a").state(), v1::RUN_STATE_FINISHED);
  ASSERT_TRUE(ReportEnd("a", 7).ok());
  const v1::Run run = server_.GetRun("a");
  EXPECT_EQ(run.state(), v1::RUN_STATE_FAILED);
  EXPECT_EQ(run.standing(), v1::STANDING_DIED);
  EXPECT_EQ(run.verdict().failure(), "exit code 7");
  EXPECT_EQ(ReportEnd("nobody", 0).error_code(), grpc::NOT_FOUND);
  const grpc::Status wrong = ReportEnd("a", 70000);
  EXPECT_EQ(wrong.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(wrong.error_message(), HasSubstr("70000"));
}

TEST_F(Listed, ARunIsWatchedInBuckets) {
  AddRun("a", "gpt", 10, 700);

  grpc::ClientContext context;
  v1::WatchRunRequest request;
  request.set_run_id("a");
  request.set_buckets(5);
  const auto stream = server_.query().WatchRun(&context, request);
  v1::RunEvent event;
  ASSERT_TRUE(stream->Read(&event));

  EXPECT_EQ(event.steps_size(), 0);
  EXPECT_EQ(event.past().steps(), 10U);
  EXPECT_EQ(event.past().first_size(), 5);
  EXPECT_EQ(event.run().ending(), "finished");

  grpc::ClientContext part;
  v1::GetStepsRequest steps;
  steps.set_run_id("a");
  steps.set_from_step(3);
  steps.set_to_step(4);
  v1::StepBuckets buckets;
  ASSERT_TRUE(server_.query().GetSteps(&part, steps, &buckets).ok());
  EXPECT_THAT(buckets.first(), ElementsAre(3, 4));
}

}  // namespace
}  // namespace reprise::server
