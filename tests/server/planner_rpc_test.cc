// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "bench/generate/generate.h"
#include "formats/convert/digest.h"
#include "formats/convert/graph_proto.h"
#include "server/service/planning/planning.h"
#include "server/store/plan_rows.h"
#include "server/store/store.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Peaks of SmallGraph with its 1024 bytes of static memory: without a plan x, y
// and z are alive at op 2; y and z alone if x is recomputed, which costs 1 of
// 10 us.
constexpr int64_t kBasePeak = 1024 + 4096 + 8192 + 8192;
constexpr int64_t kSmallestPeak = 1024 + 8192 + 8192;

grpc::Status PlanStatus(TestServer& server, const v1::PlanRequest& request) {
  grpc::ClientContext context;
  const auto reader = server.planner().Plan(&context, request);
  v1::PlanEvent event;
  while (reader->Read(&event)) {
  }
  return reader->Finish();
}

TEST(PutGraphTest, NamesEqualGraphsEquallyUnlessTheSubmitterNamesThem) {
  TestServer server;
  const std::string id = server.PutGraph(SmallGraph(), "");

  EXPECT_EQ(id,
            formats::HexId(formats::IdOf(SmallGraph().SerializeAsString())));
  EXPECT_EQ(server.PutGraph(SmallGraph(), ""), id);

  grpc::ClientContext context;
  v1::GraphRef ref;
  const auto writer = server.planner().PutGraph(&context, &ref);
  v1::GraphPart part;
  part.set_graph_id("00000000000000aa");
  part.set_data(SmallGraph().SerializeAsString());
  writer->Write(part);
  writer->WritesDone();
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(ref.graph_id(), "00000000000000aa");
}

TEST(PutGraphTest, NamesTheFieldThatIsWrong) {
  TestServer server;
  v1::StepGraph graph = SmallGraph();
  graph.mutable_ops(1)->set_time_ns(-1);
  grpc::ClientContext context;
  v1::GraphRef ref;
  const auto writer = server.planner().PutGraph(&context, &ref);
  v1::GraphPart part;
  part.set_data(graph.SerializeAsString());
  writer->Write(part);
  writer->WritesDone();

  const grpc::Status status = writer->Finish();

  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("ops[1]"));
}

TEST(PutGraphTest, RefusesAPartAboveOneMebibyte) {
  TestServer server;
  grpc::ClientContext context;
  v1::GraphRef ref;
  const auto writer = server.planner().PutGraph(&context, &ref);
  v1::GraphPart part;
  part.set_data(std::string((1 << 20) + 1, 'x'));
  writer->Write(part);
  writer->WritesDone();

  EXPECT_EQ(writer->Finish().error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// Five uploads of 63 MiB each, none of them complete.
TEST(PutGraphTest, GraphsThatAreBeingSentHaveALimitTogether) {
  TestServer server;
  struct Sending {
    grpc::ClientContext context;
    v1::GraphRef ref;
    std::unique_ptr<grpc::ClientWriter<v1::GraphPart>> writer;
  };
  v1::GraphPart part;
  part.set_data(std::string(1 << 20, 'x'));
  std::deque<Sending> all(5);
  for (Sending& one : all) {
    one.writer = server.planner().PutGraph(&one.context, &one.ref);
    for (int i = 0; i < 63 && one.writer->Write(part); ++i) {
    }
  }
  std::vector<grpc::StatusCode> ended;
  for (Sending& one : all) {
    one.writer->WritesDone();
    ended.push_back(one.writer->Finish().error_code());
  }

  // 5 * 63 MiB exceed 256 MiB; the uploads that fit are not valid graphs. Two
  // that arrive at the limit together are both refused.
  const auto refused = std::count(ended.begin(), ended.end(),
                                  grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_GE(refused, 1);
  EXPECT_LE(refused, 2);
  EXPECT_EQ(std::count(ended.begin(), ended.end(),
                       grpc::StatusCode::INVALID_ARGUMENT),
            5 - refused);
  EXPECT_FALSE(server.PutGraph(SmallGraph(), "").empty());
}

TEST(PlanTest, RecomputesWhatTheBudgetHasNoRoomFor) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");

  const v1::Plan plan =
      server.Plan(RequestFor(graph_id, std::to_string(kSmallestPeak)));

  EXPECT_TRUE(plan.feasible()) << plan.sentence();
  EXPECT_EQ(plan.peak_bytes(), kSmallestPeak);
  EXPECT_EQ(plan.base_peak_bytes(), kBasePeak);
  EXPECT_DOUBLE_EQ(plan.overhead(), 0.1);  // op 0 runs again: 1 of 10 us
  EXPECT_EQ(plan.decisions(0), v1::DECISION_RECOMPUTE);
  EXPECT_THAT(plan.sentence(), StartsWith("It fits in 17.0 KiB."));

  grpc::ClientContext context;
  v1::GetPlanRequest request;
  request.set_plan_id(plan.plan_id());
  v1::Plan stored;
  ASSERT_TRUE(server.planner().GetPlan(&context, request, &stored).ok());
  EXPECT_EQ(stored.SerializeAsString(), plan.SerializeAsString());
}

TEST(PlanTest, AnswersAnImpossibleBudgetWithTheOpThatProvesIt) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");

  const v1::Plan plan =
      server.Plan(RequestFor(graph_id, std::to_string(kSmallestPeak - 1)));

  EXPECT_FALSE(plan.feasible());
  EXPECT_EQ(plan.infeasible().smallest_budget_bytes(), kSmallestPeak);
  EXPECT_EQ(plan.infeasible().blocking_op(), 2u);
  EXPECT_THAT(plan.sentence(), HasSubstr("op 2 aten.op2 (layers.0)"));
}

TEST(PlanTest, FindsThePlanThatNeedsLeastWithoutABudget) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");
  v1::PlanRequest request = RequestFor(graph_id, "least");
  request.set_reserve_bytes(100);

  const v1::Plan plan = server.Plan(request);

  EXPECT_TRUE(plan.feasible()) << plan.sentence();
  EXPECT_EQ(plan.peak_bytes(), kSmallestPeak + 100);
  EXPECT_EQ(plan.budget_bytes(), kSmallestPeak + 100);
}

TEST(PlanTest, HoldsBackWhatTheJobMeasuredAboveTheModel) {
  TestServer server;
  v1::StepGraph graph = SmallGraph();
  graph.set_measured_peak_bytes(kBasePeak + 1000);
  graph.set_measured_step_ns(50'000);
  const std::string graph_id = server.PutGraph(graph, "");

  // The model's least peak is kSmallestPeak; the measured one is 1000 bytes
  // above the model's.
  const v1::Plan fits =
      server.Plan(RequestFor(graph_id, std::to_string(kSmallestPeak + 1000)));
  const v1::Plan does_not =
      server.Plan(RequestFor(graph_id, std::to_string(kSmallestPeak + 999)));

  EXPECT_TRUE(fits.feasible());
  EXPECT_EQ(fits.peak_bytes(), kSmallestPeak + 1000);
  EXPECT_EQ(fits.base_peak_bytes(), kBasePeak + 1000);
  EXPECT_FALSE(does_not.feasible());
}

TEST(PlanTest, NamesWhatIsWrongWithARequest) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");

  const grpc::Status bare = PlanStatus(server, RequestFor(graph_id, "8G"));
  EXPECT_EQ(bare.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(bare.error_message(), HasSubstr("8GiB"));
  EXPECT_EQ(
      PlanStatus(server, RequestFor("00000000000000ff", "1.0x")).error_code(),
      grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(PlanStatus(server, RequestFor("nonsense", "1.0x")).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// A graph that cannot be solved within a test.
std::string PutHardGraph(TestServer& server) {
  const auto graph =
      planner::Generate({.kind = planner::GraphKind::kLayered, .ops = 2'000});
  return server.PutGraph(formats::ToProto(*graph), "");
}

TEST(PlanTest, EndsSoonWhenTheClientLeaves) {
  TestServer server;
  v1::PlanRequest request = RequestFor(PutHardGraph(server), "0.7x");
  request.set_target_gap(0);
  request.set_time_limit_ms(kMaxTimeLimitMs);
  grpc::ClientContext context;
  const auto reader = server.planner().Plan(&context, request);
  v1::PlanEvent event;
  ASSERT_TRUE(reader->Read(&event));  // the search runs

  context.TryCancel();
  while (reader->Read(&event)) {
  }

  EXPECT_FALSE(reader->Finish().ok());
  // The call ends on the server as well, long before its limit of time.
  EXPECT_TRUE(Eventually([&] {
    return server
               .Http(
                   "GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
                   "Connection: close\r\n\r\n")
               .find(
                   "{code=\"canceled\",method=\"/reprise.v1.Planner/Plan\"} "
                   "1") != std::string::npos;
  }));
  // The server still plans.
  EXPECT_TRUE(server.Plan(RequestFor(server.PutGraph(SmallGraph(), ""), "1.0x"))
                  .feasible());
}

TEST(PlanTest, HandsOverTheBestPlanSoFarWhenAskedToFinish) {
  TestServer server;
  v1::PlanRequest request = RequestFor(PutHardGraph(server), "0.7x");
  request.set_target_gap(0);
  request.set_time_limit_ms(kMaxTimeLimitMs);
  request.set_request_id("the hard one");
  grpc::ClientContext context;
  const auto reader = server.planner().Plan(&context, request);
  v1::PlanEvent event;
  v1::PlanProgress last;
  while (last.overhead() <= 0 && reader->Read(&event)) {
    last = event.progress();
  }
  EXPECT_DOUBLE_EQ(last.gap(), last.overhead() - last.bound());

  grpc::ClientContext finish_context;
  v1::FinishPlanRequest finish;
  finish.set_request_id("the hard one");
  v1::FinishPlanResponse done;
  ASSERT_TRUE(server.planner().FinishPlan(&finish_context, finish, &done).ok());
  while (reader->Read(&event)) {
  }

  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(event.plan().feasible());
  EXPECT_TRUE(event.plan().interrupted());
  EXPECT_LE(event.plan().overhead(), last.overhead());
}

TEST(PlanTest, AJobsPlanIsMadeWhileOthersSearchForMinutes) {
  TestServer server;
  v1::PlanRequest patient = RequestFor(PutHardGraph(server), "0.7x");
  patient.set_target_gap(0);
  patient.set_time_limit_ms(kMaxTimeLimitMs);
  std::deque<grpc::ClientContext> contexts(4);
  std::vector<std::unique_ptr<grpc::ClientReader<v1::PlanEvent>>> searching;
  v1::PlanEvent event;
  for (grpc::ClientContext& context : contexts) {
    searching.push_back(server.planner().Plan(&context, patient));
    // Starts as many searches as may run at once; the last two wait.
    if (searching.size() <= 2) {
      ASSERT_TRUE(searching.back()->Read(&event));
    }
  }

  v1::PlanRequest prompt = RequestFor(server.PutGraph(SmallGraph(), "r"), "1x");
  prompt.set_run_id("r");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::minutes(1));
  const auto reader = server.planner().Plan(&context, prompt);
  while (reader->Read(&event)) {
  }

  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(event.plan().feasible());
  for (grpc::ClientContext& one : contexts) one.TryCancel();
  for (const auto& one : searching) {
    while (one->Read(&event)) {
    }
    EXPECT_EQ(one->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

TEST(PlanTest, FinishesOnlyWhatIsRunning) {
  TestServer server;
  for (const char* id : {"", "nobody"}) {
    grpc::ClientContext context;
    v1::FinishPlanRequest request;
    request.set_request_id(id);
    v1::FinishPlanResponse response;

    EXPECT_EQ(
        server.planner().FinishPlan(&context, request, &response).error_code(),
        grpc::StatusCode::NOT_FOUND);
  }
}

TEST(PlanTest, NamesTheSearchOptionThatCannotBeMeant) {
  TestServer server;
  v1::PlanRequest request =
      RequestFor(server.PutGraph(SmallGraph(), ""), "1.0x");
  request.set_target_gap(-0.1);
  EXPECT_THAT(PlanStatus(server, request).error_message(),
              HasSubstr("target_gap"));

  request.clear_target_gap();
  request.set_request_id(std::string(65, 'x'));
  EXPECT_THAT(PlanStatus(server, request).error_message(),
              HasSubstr("request_id"));
}

TEST(SweepTest, StreamsTheCurveFromTheLargestBudgetDown) {
  TestServer server;
  v1::SweepRequest request;
  request.set_graph_id(server.PutGraph(SmallGraph(), ""));
  request.set_points(5);
  grpc::ClientContext context;
  const auto reader = server.planner().Sweep(&context, request);
  std::vector<v1::TradeoffPoint> points;
  v1::TradeoffPoint point;
  while (reader->Read(&point)) points.push_back(point);

  ASSERT_TRUE(reader->Finish().ok());
  ASSERT_GE(points.size(), 2u);
  EXPECT_EQ(points.front().budget_bytes(), kBasePeak);
  EXPECT_EQ(points.front().overhead(), 0);
  for (size_t i = 1; i < points.size(); ++i) {
    EXPECT_LT(points[i].budget_bytes(), points[i - 1].budget_bytes());
    EXPECT_GE(points[i].overhead(), points[i - 1].overhead());
  }
}

TEST(ExplainTest, SaysWhatHappensToEveryStorageLargestFirst) {
  TestServer server;
  v1::StepGraph graph = SmallGraph();
  graph.set_timing("host: no kernel was traced");
  const v1::Plan plan = server.Plan(
      RequestFor(server.PutGraph(graph, ""), std::to_string(kSmallestPeak)));
  grpc::ClientContext context;
  v1::ExplainRequest request;
  request.set_plan_id(plan.plan_id());
  v1::Explanation explanation;
  ASSERT_TRUE(server.planner().Explain(&context, request, &explanation).ok());

  EXPECT_EQ(explanation.timing(), "host: no kernel was traced");
  ASSERT_EQ(explanation.storages_size(), 4);
  EXPECT_EQ(explanation.storages(0).bytes(), 8192);
  const auto x =
      std::find_if(explanation.storages().begin(), explanation.storages().end(),
                   [](const auto& storage) { return storage.name() == "x"; });
  ASSERT_NE(x, explanation.storages().end());
  EXPECT_EQ(x->decision(), v1::DECISION_RECOMPUTE);
  EXPECT_EQ(x->times_recomputed(), 1u);
  EXPECT_EQ(x->made_by(), 0u);
  EXPECT_EQ(x->last_read_by(), 4u);
  EXPECT_TRUE(x->alive_at_base_peak());
  EXPECT_FALSE(x->alive_at_peak());
}

// As a daemon stored it that still had the executor `nested`: with regions, in
// fields that are reserved now.
TEST(ExplainTest, ReadsAStoredPlanForAnExecutorThatIsGone) {
  TestServer server;
  v1::Plan plan = server.Plan(RequestFor(server.PutGraph(SmallGraph(), ""),
                                         std::to_string(kSmallestPeak)));
  server.Stop();
  {
    const auto store =
        Store::Open({.path = server.folder() + "/data/reprise.db",
                     .url = server.store_url()});
    ASSERT_TRUE(store.ok());
    StatusOr<PlanRow> row = NotFound("");
    ASSERT_TRUE((*store)
                    ->Read([&](Database& db) -> Status {
                      row = LoadPlan(db, plan.plan_id());
                      return row.status();
                    })
                    .ok());
    plan.set_plan_id("00000000000000bb");
    row->plan = plan;
    row->plan.GetReflection()
        ->MutableUnknownFields(&row->plan)
        ->AddVarint(32, 1);
    row->plan.mutable_executor()->assign("nested");
    v1::Capabilities& asked = *row->request.mutable_capabilities();
    asked.set_executor("nested");
    asked.set_execution(static_cast<v1::Execution>(3));
    ASSERT_TRUE((*store)
                    ->Write([&](Database& db) { return SavePlan(db, *row, 1); })
                    .ok());
  }
  server.Start();
  v1::ExplainRequest request;
  request.set_plan_id(plan.plan_id());
  v1::Explanation explanation;
  v1::VerifyRequest check;
  check.set_plan_id(plan.plan_id());
  v1::Verification found;
  grpc::ClientContext explaining, verifying;

  ASSERT_TRUE(
      server.planner().Explain(&explaining, request, &explanation).ok());
  ASSERT_TRUE(server.planner().Verify(&verifying, check, &found).ok());

  EXPECT_EQ(explanation.plan().executor(), "nested");
  EXPECT_EQ(explanation.capabilities().executor(), "free");
  EXPECT_EQ(found.peak_bytes(), plan.peak_bytes());
}

TEST(VerifyTest, ChecksAStoredPlanWithItsCertificate) {
  TestServer server;
  const v1::Plan plan = server.Plan(RequestFor(
      server.PutGraph(SmallGraph(), ""), std::to_string(kSmallestPeak)));
  v1::VerifyRequest request;
  request.set_plan_id(plan.plan_id());
  v1::Verification found;
  grpc::ClientContext context;

  ASSERT_TRUE(server.planner().Verify(&context, request, &found).ok());

  EXPECT_TRUE(found.holds()) << found.wrong();
  EXPECT_EQ(plan.bound_proof(), v1::BOUND_PROOF_CHECKED);
  EXPECT_EQ(found.bound_proof(), v1::BOUND_PROOF_CHECKED);
  EXPECT_TRUE(found.proven_optimal());
  EXPECT_EQ(found.peak_bytes(), plan.peak_bytes());
}

TEST(ExplainTest, KnowsNoPlanThatWasNotMade) {
  TestServer server;
  grpc::ClientContext context;
  v1::ExplainRequest request;
  request.set_plan_id("00000000000000ff");
  v1::Explanation explanation;
  EXPECT_EQ(
      server.planner().Explain(&context, request, &explanation).error_code(),
      grpc::StatusCode::NOT_FOUND);
}

// Returns a serialized message with this text in field `number`.
std::string TextField(int number, const std::string& text) {
  return std::string(1, static_cast<char>(number << 3 | 2)) +
         std::string(1, static_cast<char>(text.size())) + text;
}

TEST(HealthTest, EveryServiceServes) {
  TestServer server;
  for (const char* service :
       {"", "reprise.v1.Planner", "reprise.v1.Query", "reprise.v1.Ingest"}) {
    const std::string answer =
        RawCall(server.channel(), "/grpc.health.v1.Health/Check",
                TextField(1, service));

    EXPECT_EQ(answer, "\x08\x01") << service;  // status: SERVING
  }
}

}  // namespace
}  // namespace reprise::server
