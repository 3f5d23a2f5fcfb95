// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/str_cat.h"
#include "profiler/include/reprise_agent.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr int64_t kBasePeak = 1024 + 4096 + 8192 + 8192;
constexpr int64_t kSmallestPeak = 1024 + 8192 + 8192;

v1::StepReport PlannedStep(uint64_t step, const v1::Plan& plan,
                           int64_t peak_bytes) {
  v1::StepReport report;
  report.set_step(step);
  report.set_plan_id(plan.plan_id());
  report.set_planned(true);
  report.set_peak_bytes(peak_bytes);
  report.set_step_ns(11'000 + static_cast<int64_t>(step));
  report.set_end_ns(static_cast<int64_t>(step) * 1'000'000);
  return report;
}

v1::VerifyReport EqualGradients(uint64_t step) {
  v1::VerifyReport report;
  report.set_step(step);
  report.set_checked(10);
  report.set_bitwise(true);
  return report;
}

// A run with a plan that just fits its budget.
class PlannedRun : public ::testing::Test {
 protected:
  PlannedRun() : sender_(server_.ingest(), "s1", "run-1") {
    EXPECT_TRUE(sender_.Greet());
    v1::PlanRequest request = RequestFor(
        server_.PutGraph(SmallGraph(), "run-1"), std::to_string(kSmallestPeak));
    request.set_run_id("run-1");
    plan_ = server_.Plan(request);
  }

  void Send(const v1::Columns& columns, uint32_t count = 0) {
    ASSERT_TRUE(sender_.SendChunk(MakeChunk(++seq_, columns, count)));
    ASSERT_TRUE(sender_.AwaitAck(seq_));
  }
  void Send(const v1::StepReport& step) {
    v1::Columns columns;
    *columns.add_steps() = step;
    Send(columns);
  }
  void Send(const v1::VerifyReport& check) {
    v1::Columns columns;
    *columns.add_checks() = check;
    Send(columns);
  }

  TestServer server_;
  Sender sender_;
  v1::Plan plan_;
  uint64_t seq_ = 0;
};

// ---- The verdict ----

TEST_F(PlannedRun, IsValidatedWhenEveryStepHeld) {
  Send(PlannedStep(1, plan_, kSmallestPeak - 10));
  Send(PlannedStep(2, plan_, kSmallestPeak));
  v1::StepReport traced = PlannedStep(3, plan_, kSmallestPeak);
  traced.set_window(true);
  traced.set_step_ns(99'000'000);  // slowed by the trace, not counted
  Send(traced);
  Send(EqualGradients(2));

  const v1::Run run = server_.GetRun("latest");

  const v1::Verdict& verdict = run.verdict();
  EXPECT_TRUE(verdict.validated());
  EXPECT_TRUE(verdict.feasible());
  EXPECT_EQ(verdict.measured_peak_bytes(), kSmallestPeak);
  EXPECT_EQ(verdict.predicted_peak_bytes(), kSmallestPeak);
  EXPECT_EQ(verdict.base_peak_bytes(), kBasePeak);
  EXPECT_EQ(verdict.base_step_ns(), 10'000);
  EXPECT_EQ(verdict.predicted_step_ns(), 11'000);  // op 0 runs twice
  EXPECT_EQ(verdict.measured_step_ns(), 11'001);   // median of 11001, 11002
  EXPECT_EQ(verdict.planned_steps(), 3u);
  EXPECT_TRUE(verdict.gradients_equal());
  EXPECT_THAT(verdict.sentence(),
              EndsWith("gradients bit for bit equal in 1 check."));
  EXPECT_EQ(run.steps(), 3u);
  EXPECT_EQ(run.plan_id(), plan_.plan_id());
}

TEST_F(PlannedRun, IsNotValidatedByAPeakAboveTheBudget) {
  Send(EqualGradients(1));
  Send(PlannedStep(1, plan_, kSmallestPeak + 1));
  const v1::Verdict verdict = server_.GetRun("run-1").verdict();
  EXPECT_FALSE(verdict.validated());
  EXPECT_EQ(verdict.over_budget_steps(), 1u);
}

TEST_F(PlannedRun, IsNotValidatedWithoutACheck) {
  Send(PlannedStep(1, plan_, kSmallestPeak));
  const v1::Verdict verdict = server_.GetRun("run-1").verdict();
  EXPECT_FALSE(verdict.validated());
  EXPECT_THAT(verdict.sentence(), EndsWith("not checked yet."));
}

TEST_F(PlannedRun, IsNeitherValidatedNorFinishedWhenItDied) {
  struct End {
    bool killed;
    std::string failure;
    v1::RunState state;
    std::string words;
  };
  int number = 0;
  for (const End& end :
       {End{true, "", v1::RUN_STATE_KILLED, "The job was killed."},
        End{false, "ValueError: its own", v1::RUN_STATE_FAILED,
            "The job failed: ValueError: its own."}}) {
    const std::string run_id = StrCat("dead-", ++number);
    Sender sender(server_.ingest(), StrCat("s-", run_id), run_id);
    ASSERT_TRUE(sender.Greet());
    v1::PlanRequest request = RequestFor(plan_.graph_id(), plan_.budget());
    request.set_run_id(run_id);
    const v1::Plan plan = server_.Plan(request);
    v1::Columns columns;
    *columns.add_checks() = EqualGradients(1);
    *columns.add_steps() = PlannedStep(1, plan, kSmallestPeak);
    if (!end.failure.empty()) {
      v1::PlanState& state = *columns.add_states();
      state.set_state(REPRISE_JOB_FAILED);
      state.set_why(end.failure);
    }
    ASSERT_TRUE(sender.SendChunk(MakeChunk(1, columns, 0)));
    ASSERT_TRUE(sender.AwaitAck(1));
    EXPECT_TRUE(server_.GetRun(run_id).verdict().validated());
    ASSERT_TRUE(sender.Bye(end.killed));
    sender.Finish();

    const v1::Run run = server_.GetRun(run_id);

    EXPECT_EQ(run.state(), end.state);
    EXPECT_FALSE(run.verdict().validated());
    EXPECT_THAT(run.verdict().sentence(), EndsWith(end.words));
    grpc::ClientContext context;
    v1::ListRunsResponse all;
    ASSERT_TRUE(server_.query().ListRuns(&context, {}, &all).ok());
    const auto listed = std::find_if(
        all.runs().begin(), all.runs().end(),
        [&](const v1::Run& one) { return one.run_id() == run_id; });
    ASSERT_NE(listed, all.runs().end());
    EXPECT_EQ(listed->state(), end.state);
    EXPECT_FALSE(listed->verdict().validated());
  }
}

TEST_F(PlannedRun, PredictsWhatTheExecutorSaysThatItNeedsForItself) {
  v1::Columns columns;
  v1::PlanState& state = *columns.add_states();
  state.set_state(REPRISE_PLAN_APPLIED);
  state.set_plan_id(plan_.plan_id());
  state.set_own_ns(500);
  Send(columns);
  Send(PlannedStep(1, plan_, kSmallestPeak));

  EXPECT_EQ(server_.GetRun("run-1").verdict().predicted_step_ns(), 11'500);
}

TEST_F(PlannedRun, SaysWhyItHasNoPlan) {
  Sender sender(server_.ingest(), "s2", "run-2");
  ASSERT_TRUE(sender.Greet());
  v1::Columns columns;
  v1::PlanState& state = *columns.add_states();
  state.set_state(REPRISE_PLAN_NONE);
  state.set_why("a pack hook of the program is open");
  ASSERT_TRUE(sender.SendChunk(MakeChunk(1, columns, 0)));
  ASSERT_TRUE(sender.AwaitAck(1));

  const v1::Verdict verdict = server_.GetRun("run-2").verdict();

  EXPECT_EQ(verdict.sentence(), "No plan: a pack hook of the program is open.");
  EXPECT_FALSE(verdict.validated());
}

TEST_F(PlannedRun, IsNotValidatedByADifferentGradient) {
  Send(PlannedStep(1, plan_, kSmallestPeak));
  v1::VerifyReport check = EqualGradients(1);
  check.set_bitwise(false);
  check.set_differing(1);
  Send(check);
  const v1::Verdict verdict = server_.GetRun("run-1").verdict();
  EXPECT_FALSE(verdict.validated());
  EXPECT_FALSE(verdict.gradients_equal());
  EXPECT_EQ(verdict.gradients_differing(), 1u);
}

TEST_F(PlannedRun, IsNotValidatedByAMismatch) {
  v1::StepReport step = PlannedStep(1, plan_, 100);
  step.set_kept_all(true);
  Send(step);
  const v1::Verdict verdict = server_.GetRun("run-1").verdict();
  EXPECT_FALSE(verdict.validated());
  EXPECT_EQ(verdict.mismatches(), 1u);
}

TEST_F(PlannedRun, SaysWhenTheBudgetWasImpossible) {
  v1::PlanRequest request = RequestFor(plan_.graph_id(), "5000");
  request.set_run_id("run-1");
  const v1::Plan impossible = server_.Plan(request);
  const v1::Verdict verdict = server_.GetRun("run-1").verdict();
  EXPECT_FALSE(verdict.feasible());
  EXPECT_FALSE(verdict.validated());
  EXPECT_EQ(verdict.sentence(), impossible.sentence());
}

// ---- Re-planning ----

TEST_F(PlannedRun, IsPlannedAgainWhenAStepPeakedAboveItsBudget) {
  // A looser budget, so that part of it can be held back.
  v1::PlanRequest request =
      RequestFor(plan_.graph_id(), std::to_string(kBasePeak));
  request.set_run_id("run-1");
  const v1::Plan loose = server_.Plan(request);
  ASSERT_EQ(loose.overhead(), 0);

  Send(PlannedStep(1, loose, kBasePeak + 100));

  std::optional<v1::Down> down = sender_.Read();
  ASSERT_TRUE(down && down->has_plan());
  const v1::Plan& plan = down->plan().plan();
  EXPECT_EQ(down->plan().graph_id(), plan_.graph_id());
  EXPECT_EQ(plan.replan(), 1u);
  EXPECT_EQ(plan.budget_bytes(), kBasePeak);
  // The excess of 100 bytes is held back, and the rest requires the
  // recomputation.
  EXPECT_EQ(plan.peak_bytes(), kSmallestPeak + 100);
  EXPECT_EQ(server_.GetRun("run-1").plan_id(), plan.plan_id());

  // A late report about the old plan changes nothing.
  Send(PlannedStep(2, loose, kBasePeak + 5000));
  EXPECT_EQ(server_.GetRun("run-1").plan_id(), plan.plan_id());
}

// Only a client knows of some of what its plan needs beyond what it says.
TEST_F(PlannedRun, IsGivenAPlanThatLeavesWhatTheJobSaysItNeedsBeyondItsPlan) {
  v1::PlanRequest request =
      RequestFor(plan_.graph_id(), std::to_string(kBasePeak));
  request.set_run_id("run-1");
  const v1::Plan loose = server_.Plan(request);
  request.set_replaces(loose.plan_id());
  request.set_more_bytes(100);

  const v1::Plan roomy = server_.Plan(request);

  EXPECT_TRUE(roomy.feasible());
  EXPECT_EQ(roomy.budget_bytes(), kBasePeak);
  EXPECT_EQ(roomy.peak_bytes(), kSmallestPeak + 100);
  EXPECT_EQ(roomy.replan(), 1u);
  EXPECT_EQ(server_.GetRun("run-1").plan_id(), roomy.plan_id());
}

TEST_F(PlannedRun, IsPlannedAgainOnceWhenItsStepIsReportedAndTheJobAsksToo) {
  v1::PlanRequest request =
      RequestFor(plan_.graph_id(), std::to_string(kBasePeak));
  request.set_run_id("run-1");
  const v1::Plan loose = server_.Plan(request);
  Send(PlannedStep(1, loose, kBasePeak + 100));
  std::optional<v1::Down> down = sender_.Read();
  ASSERT_TRUE(down && down->has_plan());

  request.set_replaces(loose.plan_id());
  request.set_more_bytes(100);
  const v1::Plan answer = server_.Plan(request);

  EXPECT_EQ(answer.plan_id(), down->plan().plan().plan_id());
  EXPECT_EQ(answer.replan(), 1u);
  EXPECT_EQ(server_.GetRun("run-1").plan_id(), answer.plan_id());
}

TEST_F(PlannedRun, IsGivenThePlanThatNeedsLeastWhereNothingLeavesAsMuch) {
  v1::PlanRequest request =
      RequestFor(plan_.graph_id(), std::to_string(kBasePeak));
  request.set_run_id("run-1");
  const v1::Plan loose = server_.Plan(request);
  request.set_replaces(loose.plan_id());
  request.set_more_bytes(kBasePeak - kSmallestPeak + 1);

  const v1::Plan least = server_.Plan(request);

  EXPECT_TRUE(least.feasible());
  EXPECT_EQ(least.budget_bytes(), kBasePeak) << "which is the program's";
  EXPECT_EQ(least.peak_bytes(), kBasePeak)
      << "the smallest peak, and what can be held back beside it";
  request.set_replaces(least.plan_id());
  const v1::Plan refusal = server_.Plan(request);
  EXPECT_FALSE(refusal.feasible()) << "nothing needs less than that";
  EXPECT_GT(refusal.infeasible().smallest_budget_bytes(), kBasePeak);
  EXPECT_EQ(server_.GetRun("run-1").plan_id(), least.plan_id())
      << "a refusal is no plan of the run";
}

// ---- Plans that were found wrong ----

TEST_F(PlannedRun, IsGivenNoPlanAgainThatChangedGradients) {
  v1::VerifyReport check = EqualGradients(4);
  check.set_plan_id(plan_.plan_id());
  Send(check);
  v1::PlanRequest request =
      RequestFor(plan_.graph_id(), std::to_string(kSmallestPeak));
  request.set_run_id("run-2");  // another job with the same step
  EXPECT_EQ(server_.Plan(request).plan_id(), plan_.plan_id());

  check.set_bitwise(false);
  check.set_failed(true);
  check.set_differing(1);
  Send(check);

  grpc::ClientContext context;
  const auto reader = server_.planner().Plan(&context, request);
  for (v1::PlanEvent event; reader->Read(&event);) {
    EXPECT_FALSE(event.has_plan());
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              HasSubstr("is withdrawn: step 4 of run run-1 saw it change"));
  // A request without a run may still see it.
  request.clear_run_id();
  EXPECT_EQ(server_.Plan(request).plan_id(), plan_.plan_id());
}

// ---- Lists and errors ----

TEST_F(PlannedRun, IsFoundByItsBeginning) {
  EXPECT_EQ(server_.GetRun("run").run_id(), "run-1");
  grpc::ClientContext context;
  v1::GetRunRequest request;
  request.set_run_id("nope");
  v1::Run run;
  EXPECT_EQ(server_.query().GetRun(&context, request, &run).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(PlannedRun, IsListedNewestFirst) {
  Sender other(server_.ingest(), "s2", "run-2");
  other.hello.mutable_info()->set_realtime_ns(2);
  ASSERT_TRUE(other.Greet());
  grpc::ClientContext context;
  v1::ListRunsResponse response;
  ASSERT_TRUE(server_.query()
                  .ListRuns(&context, v1::ListRunsRequest(), &response)
                  .ok());
  ASSERT_EQ(response.runs_size(), 2);
  EXPECT_EQ(response.runs(0).run_id(), "run-2");
  EXPECT_EQ(response.runs(1).verdict().budget_bytes(), kSmallestPeak);
}

TEST_F(PlannedRun, StatusNamesWhereEverythingIs) {
  grpc::ClientContext context;
  v1::ServerStatus status;
  ASSERT_TRUE(
      server_.query().GetStatus(&context, v1::StatusRequest(), &status).ok());
  EXPECT_EQ(status.listen(), server_.daemon().http_address());
  EXPECT_EQ(status.agent_socket(), server_.folder() + "/run/agent.sock");
  EXPECT_EQ(status.data_dir(), server_.folder() + "/data");
  EXPECT_EQ(status.runs(), 1u);
  EXPECT_GT(status.store_bytes(), 0);
  EXPECT_EQ(status.degraded(), "");
}

// ---- WatchRun ----

TEST_F(PlannedRun, IsWatchedFromItsFirstStepToItsEnd) {
  Send(PlannedStep(1, plan_, kSmallestPeak));
  grpc::ClientContext context;
  v1::WatchRunRequest request;
  request.set_run_id("latest");
  const auto reader = server_.query().WatchRun(&context, request);
  v1::RunEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.steps_size(), 1);
  EXPECT_EQ(event.plan().plan_id(), plan_.plan_id());
  EXPECT_EQ(event.run().verdict().planned_steps(), 1u);
  EXPECT_FALSE(event.run().verdict().validated());  // nothing was checked yet

  Send(PlannedStep(2, plan_, kSmallestPeak));
  ASSERT_TRUE(reader->Read(&event));
  ASSERT_EQ(event.steps_size(), 1);
  EXPECT_EQ(event.steps(0).step(), 2u);
  EXPECT_FALSE(event.has_plan());  // the plan did not change

  sender_.Bye();
  while (reader->Read(&event)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(event.run().state(), v1::RUN_STATE_FINISHED);
  EXPECT_EQ(event.run().verdict().planned_steps(), 2u);
}

TEST(WatchRunTest, KnowsNoRunThatIsNotThere) {
  TestServer server;
  grpc::ClientContext context;
  v1::WatchRunRequest request;
  request.set_run_id("nope");
  const auto reader = server.query().WatchRun(&context, request);
  v1::RunEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

// ---- GetTimeline ----

v1::Timeline Timeline(TestServer& server, uint32_t width, int64_t t0 = 0,
                      int64_t t1 = 0) {
  grpc::ClientContext context;
  v1::TimelineRequest request;
  request.set_run_id("run-1");
  request.set_width_px(width);
  request.set_t0_ns(t0);
  request.set_t1_ns(t1);
  v1::Timeline timeline;
  const grpc::Status status =
      server.query().GetTimeline(&context, request, &timeline);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return timeline;
}

TEST_F(PlannedRun, TimelinePredictsWithAndWithoutThePlan) {
  const v1::Timeline timeline = Timeline(server_, 11);

  EXPECT_EQ(timeline.budget_bytes(), kSmallestPeak);
  EXPECT_EQ(timeline.predicted().peak_bytes(), kSmallestPeak);
  EXPECT_EQ(timeline.predicted().step_ns(), 11'000);
  EXPECT_EQ(timeline.predicted_base().peak_bytes(), kBasePeak);
  EXPECT_EQ(timeline.predicted_base().peak_at_ns(), 3000);  // op 2 begins
  EXPECT_FALSE(timeline.has_measured());
  // Static memory is the lowest band; the other has all activations.
  const auto& bands = timeline.predicted_base().bands();
  ASSERT_EQ(bands.size(), 2);
  EXPECT_EQ(bands[0].category(), v1::CATEGORY_STATIC);
  EXPECT_EQ(bands[0].max_bytes(0), 1024);
  EXPECT_EQ(bands[1].category(), v1::CATEGORY_ACTIVATION);
  EXPECT_EQ(*std::max_element(bands[1].max_bytes().begin(),
                              bands[1].max_bytes().end()),
            kBasePeak - 1024);
}

// A traced step from 1,000,000 to 2,000,000 ns: a baseline, allocations at both
// ends and one of 50,000 bytes between them that lives for 3 ns.
v1::Columns TracedStep(uint64_t step, bool planned) {
  v1::Columns columns;
  const auto record = [&](uint64_t at, v1::RecordKind kind, int64_t bytes,
                          uint64_t extra) {
    columns.add_start_ns(at);
    columns.add_kind(kind);
    columns.add_bytes(bytes);
    columns.add_extra(extra);
  };
  record(999'000, v1::RECORD_KIND_ALLOC, 1024, REPRISE_BASELINE);
  record(1'000'000, v1::RECORD_KIND_STEP, 0, step);
  record(1'100'000, v1::RECORD_KIND_ALLOC, 4096, REPRISE_ALLOC);
  record(1'500'000, v1::RECORD_KIND_ALLOC, 50'000, REPRISE_ALLOC);
  record(1'500'003, v1::RECORD_KIND_ALLOC, -50'000, REPRISE_FREE);
  record(1'900'000, v1::RECORD_KIND_ALLOC, -4096, REPRISE_FREE);
  v1::StepReport& report = *columns.add_steps();
  report.set_step(step);
  report.set_planned(planned);
  report.set_window(true);
  report.set_step_ns(1'000'000);
  report.set_end_ns(2'000'000);
  return columns;
}

TEST_F(PlannedRun, TimelineShowsAMeasuredPeakOfThreeNanoseconds) {
  Send(TracedStep(7, /*planned=*/false), 6);

  // 100 columns of 10 us: the peak covers 0.03 % of one.
  const v1::Timeline timeline = Timeline(server_, 100);

  const v1::Curve& curve = timeline.measured_base();
  EXPECT_FALSE(timeline.has_measured());
  EXPECT_EQ(curve.step(), 7u);
  EXPECT_EQ(curve.step_ns(), 1'000'000);
  EXPECT_EQ(curve.peak_bytes(), 1024 + 4096 + 50'000);
  EXPECT_EQ(curve.peak_at_ns(), 500'000);
  const auto column = static_cast<int>(500'000 / curve.column_ns());
  EXPECT_EQ(curve.max_bytes(column), 1024 + 4096 + 50'000);
  EXPECT_EQ(curve.min_bytes(column), 1024 + 4096);
  EXPECT_EQ(curve.max_bytes(0), 1024);
  EXPECT_EQ(curve.max_bytes(curve.max_bytes_size() - 1), 1024);
}

TEST_F(PlannedRun, TimelineFindsTheBaselineInAnEarlierChunk) {
  v1::Columns columns = TracedStep(7, /*planned=*/true);
  v1::Columns baseline;
  baseline.add_start_ns(999'000);
  baseline.add_kind(v1::RECORD_KIND_ALLOC);
  baseline.add_bytes(1024);
  baseline.add_extra(REPRISE_BASELINE);
  Send(baseline, 1);
  const auto drop_first = [](auto* field) { field->erase(field->begin()); };
  drop_first(columns.mutable_start_ns());
  drop_first(columns.mutable_kind());
  drop_first(columns.mutable_bytes());
  drop_first(columns.mutable_extra());
  Send(columns, 5);

  EXPECT_EQ(Timeline(server_, 100).measured().peak_bytes(),
            1024 + 4096 + 50'000);
}

TEST_F(PlannedRun, TimelineReadsChunksWhoseEmptyColumnsStandForZeros) {
  v1::Columns begin;
  begin.add_start_ns(999'000);
  begin.add_kind(v1::RECORD_KIND_ALLOC);
  begin.add_bytes(1024);
  begin.add_extra(REPRISE_BASELINE);
  Send(begin, 1);
  v1::Columns only_alloc;  // `what` is 0, so that column is absent
  only_alloc.add_start_ns(1'500'000);
  only_alloc.add_kind(v1::RECORD_KIND_ALLOC);
  only_alloc.add_bytes(500);
  Send(only_alloc, 1);
  v1::Columns end;
  v1::StepReport& report = *end.add_steps();
  report.set_step(7);
  report.set_planned(true);
  report.set_window(true);
  report.set_step_ns(1'000'000);
  report.set_end_ns(2'000'000);
  Send(end);

  const v1::Curve curve = Timeline(server_, 10).measured();

  EXPECT_EQ(curve.peak_bytes(), 1524);
  EXPECT_EQ(curve.peak_at_ns(), 500'000);
  EXPECT_EQ(curve.min_bytes(0), 1024);
}

TEST_F(PlannedRun, TimelineZoomsIntoAWindow) {
  Send(TracedStep(7, /*planned=*/true), 6);
  const v1::Curve curve = Timeline(server_, 10, 499'995, 500'005).measured();
  EXPECT_EQ(curve.start_ns(), 499'995);
  EXPECT_EQ(curve.column_ns(), 1);
  EXPECT_EQ(curve.max_bytes(4), 1024 + 4096);
  EXPECT_EQ(curve.max_bytes(5), 1024 + 4096 + 50'000);
  EXPECT_EQ(curve.min_bytes(8), 1024 + 4096);

  grpc::ClientContext context;
  v1::TimelineRequest request;
  request.set_run_id("run-1");
  request.set_t0_ns(5'000'000);
  request.set_t1_ns(6'000'000);
  v1::Timeline timeline;
  const grpc::Status outside =
      server_.query().GetTimeline(&context, request, &timeline);
  EXPECT_EQ(outside.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(outside.error_message(), HasSubstr("not inside the step"));
}

}  // namespace
}  // namespace reprise::server
