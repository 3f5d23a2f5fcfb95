// SPDX-License-Identifier: Apache-2.0
//
// Graphs from the agent to the server and plans back, through a complete
// collector.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>

#include "formats/convert/digest.h"
#include "server/collect/collector.h"
#include "tests/collect/ingest_peer.h"
#include "tests/collect/raw_agent.h"
#include "tests/collect/temporary_folder.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

constexpr char kGraph[] = R"({
  "name": "toy", "staticBytes": "100", "measured_peak_bytes": 50,
  "a_field_of_tomorrow": true,
  "storages": [{"id": 0, "bytes": "64"}],
  "ops": [{"id": 0, "name": "aten.mm.default", "phase": "PHASE_FORWARD",
           "kind": "OP_KIND_PURE", "time_ns": 5, "writes": [0]}]})";

template <typename T>
T As(const std::string& body) {
  T value{};
  std::memcpy(&value, body.data(), std::min(sizeof(value), body.size()));
  return value;
}

class PlanRelayTest : public testing::Test {
 protected:
  void SetUp() override {
    peer_.planner = [](const v1::PlanRequest& request, const v1::StepGraph&,
                       v1::Plan* plan) {
      plan->set_plan_id("00000000000000ff");
      plan->set_graph_id(request.graph_id());
      plan->set_budget(request.budget());
      plan->set_feasible(true);
      plan->set_peak_bytes(120);
      plan->set_time_ns(9);
      plan->add_schedule(0);
      return grpc::Status::OK;
    };
    CollectorOptions options;
    options.agent_socket = folder_ / "agent.sock";
    options.spool_path = folder_ / "spool.db";
    options.channel = peer_.Channel();
    auto started = Collector::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status().message();
    collector_ = *std::move(started);
    ASSERT_TRUE(agent_.Connect(folder_ / "agent.sock"));
  }

  // Returns status and text of the first answer other than SOLVING and
  // UNREACHABLE: a server may take longer to start than the first attempt
  // waits.
  std::pair<uint32_t, std::string> Answer() {
    while (true) {
      const auto [status, text] = FirstAnswer();
      if (status != REPRISE_PLAN_UNREACHABLE) return {status, text};
    }
  }

  // Returns status and text of the first answer other than SOLVING.
  std::pair<uint32_t, std::string> FirstAnswer() {
    while (true) {
      const auto reply = agent_.ReceiveType(REPRISE_MSG_PLAN_STATUS);
      if (!reply || reply->type == 0) return {0, "the connection ended"};
      const auto raw = As<reprise_msg_plan_status>(reply->body);
      last_status_ = raw;
      if (raw.status == REPRISE_PLAN_SOLVING) continue;
      return {raw.status, reply->body.substr(sizeof(raw))};
    }
  }

  TemporaryFolder folder_;
  IngestPeer peer_;
  std::unique_ptr<Collector> collector_;
  RawAgent agent_;
  reprise_msg_plan_status last_status_{};
};

TEST_F(PlanRelayTest, CarriesAGraphUpAndAPlanDown) {
  v1::PlanRequest asked;
  v1::StepGraph seen;
  peer_.planner = [&, plan = peer_.planner](const v1::PlanRequest& request,
                                            const v1::StepGraph& graph,
                                            v1::Plan* answer) {
    asked = request;
    seen = graph;
    return plan(request, graph, answer);
  };

  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape:seeded_ok=1"));

  const auto solving = agent_.ReceiveType(REPRISE_MSG_PLAN_STATUS);
  EXPECT_EQ(As<reprise_msg_plan_status>(solving->body).status,
            REPRISE_PLAN_SOLVING);
  const auto reply = agent_.ReceiveType(REPRISE_MSG_PLAN);
  const auto raw = As<reprise_msg_plan>(reply->body);
  EXPECT_EQ(raw.graph_id, formats::IdOf(kGraph));
  EXPECT_EQ(raw.plan_id, 0xffu);
  EXPECT_EQ(raw.predicted_peak, 120u);
  EXPECT_EQ(raw.predicted_ns, 9u);
  EXPECT_EQ(raw.bytes, reply->file.size());
  EXPECT_EQ(reply->seals, kAllSeals);
  EXPECT_THAT(reply->file, HasSubstr("\"plan_id\":\"00000000000000ff\""));
  v1::Plan plan;
  EXPECT_TRUE(
      google::protobuf::util::JsonStringToMessage(reply->file, &plan).ok());

  EXPECT_EQ(seen.static_bytes(), 100);
  EXPECT_EQ(seen.measured_peak_bytes(), 50);
  EXPECT_EQ(seen.ops(0).name(), "aten.mm.default");
  EXPECT_EQ(asked.budget(), "0.5x");
  EXPECT_EQ(asked.run_id(), agent_.hello.run_id);
  EXPECT_EQ(asked.capabilities().executor(), "tape");
  EXPECT_TRUE(asked.capabilities().seeded_ok());
}

// The captured step's records are still in the ring when its graph arrives.
TEST_F(PlanRelayTest, AGraphWaitsForTheRecordsOfItsStepAndTakesTheirTimes) {
  v1::StepGraph seen;
  peer_.planner = [&, plan = peer_.planner](const v1::PlanRequest& request,
                                            const v1::StepGraph& graph,
                                            v1::Plan* answer) {
    seen = graph;
    return plan(request, graph, answer);
  };
  constexpr char kReported[] = R"({
    "name": "reported", "ops": [
      {"id": 0, "name": "aten.mm.default", "phase": "PHASE_FORWARD",
       "kind": "OP_KIND_PURE", "time_ns": 5, "agent_ops": ["901"]}]})";
  const auto push = [this](uint16_t kind, auto&& fill) {
    reprise_slot record = AllocRecord(0);
    record.kind = kind;
    record.body = {};
    fill(record.body);
    ASSERT_TRUE(agent_.Push(record));
  };
  for (int i = 0; i < 1500; ++i) agent_.PushAlloc(1);
  push(REPRISE_RECORD_OP_BEGIN, [](auto& body) { body.op.op = 901; });
  push(REPRISE_RECORD_OP_END, [](auto& body) { body.op.op = 901; });
  push(REPRISE_RECORD_KERNEL, [](auto& body) {
    body.kernel.correlation = 3;
    body.kernel.dur = 12345;
  });
  push(REPRISE_RECORD_LINK, [](auto& body) {
    body.api.correlation = 3;
    body.api.external_id = 901;
  });
  ASSERT_TRUE(agent_.SendGraph(kReported, "0.5x", "tape"));

  ASSERT_TRUE(agent_.ReceiveType(REPRISE_MSG_PLAN));
  EXPECT_EQ(seen.timing(), "kernels");
  EXPECT_EQ(seen.ops(0).time_ns(), 12345);
}

// A slot that is reserved but never published holds back all slots after it.
TEST_F(PlanRelayTest, AStuckWriterDoesNotHoldAPlanForEver) {
  agent_.Tear();
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape"));
  EXPECT_TRUE(agent_.ReceiveType(REPRISE_MSG_PLAN));
}

TEST_F(PlanRelayTest, SendsGraphsAboveOneMebibyteInParts) {
  std::string json = R"({"note": ")" + std::string(5 << 20, 'n') + R"("})";
  size_t note_bytes = 0;
  peer_.planner = [&, plan = peer_.planner](const v1::PlanRequest& request,
                                            const v1::StepGraph& graph,
                                            v1::Plan* answer) {
    note_bytes = graph.note().size();
    return plan(request, graph, answer);
  };

  ASSERT_TRUE(agent_.SendGraph(json, "0.5x", "tape"));

  EXPECT_EQ(agent_.ReceiveType(REPRISE_MSG_PLAN)->type, REPRISE_MSG_PLAN);
  EXPECT_EQ(note_bytes, 5u << 20);
}

TEST_F(PlanRelayTest, AnswersTheSameWishWithoutAskingTwice) {
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape"));
  ASSERT_EQ(agent_.ReceiveType(REPRISE_MSG_PLAN)->type, REPRISE_MSG_PLAN);
  agent_.Hang();
  ASSERT_TRUE(agent_.Connect(folder_ / "agent.sock"));

  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape"));
  EXPECT_EQ(agent_.ReceiveType(REPRISE_MSG_PLAN)->type, REPRISE_MSG_PLAN);
  EXPECT_EQ(peer_.plans_asked, 1);

  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.4x", "tape"));
  EXPECT_EQ(agent_.ReceiveType(REPRISE_MSG_PLAN)->type, REPRISE_MSG_PLAN);
  EXPECT_EQ(peer_.plans_asked, 2);
}

TEST_F(PlanRelayTest, NamesTheSmallestBudgetWhenNothingFits) {
  peer_.planner = [](const v1::PlanRequest&, const v1::StepGraph&,
                     v1::Plan* plan) {
    plan->set_feasible(false);
    plan->mutable_infeasible()->set_smallest_budget_bytes(777);
    plan->set_sentence("Nothing fits in 3.0 GiB: op 17 needs more.");
    return grpc::Status::OK;
  };
  ASSERT_TRUE(agent_.SendGraph(kGraph, "1", "tape"));

  const auto [status, text] = Answer();

  EXPECT_EQ(status, REPRISE_PLAN_INFEASIBLE);
  EXPECT_EQ(text, "Nothing fits in 3.0 GiB: op 17 needs more.");
  EXPECT_EQ(last_status_.smallest_budget, 777u);
}

TEST_F(PlanRelayTest, PassesOnWhyThereIsNoPlan) {
  peer_.planner = [](const v1::PlanRequest&, const v1::StepGraph&, v1::Plan*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                        "budget \"8G\": write 8GB or 8GiB");
  };
  ASSERT_TRUE(agent_.SendGraph(kGraph, "8G", "tape"));

  const auto [status, text] = Answer();

  EXPECT_EQ(status, REPRISE_PLAN_NOT_PLANNED);
  EXPECT_EQ(text, "budget \"8G\": write 8GB or 8GiB");
}

TEST_F(PlanRelayTest, RefusesContentThatIsNoGraphOfThisId) {
  ASSERT_TRUE(agent_.SendGraph("{\"ops\": 7}", "0.5x", "tape"));
  EXPECT_EQ(Answer().first, REPRISE_PLAN_NOT_PLANNED);
  ASSERT_TRUE(agent_.SendGraph("not json at all", "0.5x", "tape"));
  EXPECT_EQ(Answer().first, REPRISE_PLAN_NOT_PLANNED);
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "warp-drive"));
  EXPECT_EQ(Answer().first, REPRISE_PLAN_NOT_PLANNED);
  EXPECT_EQ(peer_.plans_asked, 0);
}

TEST_F(PlanRelayTest, RefusesAGraphThatWouldTakeGigabytesInMemory) {
  std::string json = "{\"ops\":[{}";
  for (int i = 0; i < 2'100'000; ++i) json += ",{}";
  json += "]}";
  ASSERT_TRUE(agent_.SendGraph(json, "0.5x", "tape"));

  const auto [status, text] = Answer();

  EXPECT_EQ(status, REPRISE_PLAN_NOT_PLANNED);
  EXPECT_THAT(text, HasSubstr("more than 2000000 objects"));
}

TEST_F(PlanRelayTest, SaysThatTheServerIsAwayAndPlansWhenItIsBack) {
  peer_.Suspend();
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape"));
  const auto [status, text] = FirstAnswer();
  EXPECT_EQ(status, REPRISE_PLAN_UNREACHABLE);
  EXPECT_THAT(text, HasSubstr("not reachable"));

  peer_.Resume();

  EXPECT_EQ(agent_.ReceiveType(REPRISE_MSG_PLAN)->type, REPRISE_MSG_PLAN);
}

TEST_F(PlanRelayTest, PassesOnAPlanNobodyAskedFor) {
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape"));
  ASSERT_EQ(agent_.ReceiveType(REPRISE_MSG_PLAN)->type, REPRISE_MSG_PLAN);
  v1::PlanRef better;
  better.set_graph_id(formats::HexId(formats::IdOf(kGraph)));
  better.mutable_plan()->set_plan_id("0000000000000123");
  better.mutable_plan()->set_feasible(true);
  ASSERT_TRUE(Eventually(
      [&] { return peer_.PushPlan(agent_.hello.session_id, better); }));

  const auto reply = agent_.ReceiveType(REPRISE_MSG_PLAN);
  EXPECT_EQ(As<reprise_msg_plan>(reply->body).plan_id, 0x123u);

  // The pushed plan also answers the old request from now on.
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape"));
  EXPECT_EQ(
      As<reprise_msg_plan>(agent_.ReceiveType(REPRISE_MSG_PLAN)->body).plan_id,
      0x123u);
}

TEST_F(PlanRelayTest, OneGraphMayBeAskedForInSeveralWays) {
  peer_.planner = [](const v1::PlanRequest& request, const v1::StepGraph&,
                     v1::Plan* answer) {
    answer->set_plan_id(request.reserve_bytes() == 500 ? "0000000000000002"
                                                       : "0000000000000001");
    answer->set_feasible(true);
    return grpc::Status::OK;
  };
  const auto next = [this] {
    return As<reprise_msg_plan>(agent_.ReceiveType(REPRISE_MSG_PLAN)->body);
  };
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape", /*request_id=*/71));
  const auto plain = next();
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape", 72, /*reserve=*/500));
  const auto roomy = next();
  v1::PlanRef better;
  better.set_graph_id(formats::HexId(formats::IdOf(kGraph)));
  better.set_replaces("0000000000000002");
  better.mutable_plan()->set_plan_id("0000000000000123");
  better.mutable_plan()->set_feasible(true);
  ASSERT_TRUE(Eventually(
      [&] { return peer_.PushPlan(agent_.hello.session_id, better); }));
  const auto replaced = next();
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape", 71));
  const auto again = next();

  EXPECT_EQ(plain.graph_id, 71u);
  EXPECT_EQ(plain.plan_id, 1u);
  EXPECT_EQ(roomy.graph_id, 72u);
  EXPECT_EQ(roomy.plan_id, 2u);
  EXPECT_EQ(replaced.graph_id, 72u) << "the request whose plan it replaces";
  EXPECT_EQ(replaced.plan_id, 0x123u);
  EXPECT_EQ(again.graph_id, 71u);
  EXPECT_EQ(again.plan_id, 1u) << "the other request keeps its plan";
}

TEST_F(PlanRelayTest, ASlowSolverDelaysNoRecord) {
  std::mutex mutex;
  std::condition_variable wake;
  bool go_on = false;
  peer_.planner = [&, plan = peer_.planner](const v1::PlanRequest& request,
                                            const v1::StepGraph& graph,
                                            v1::Plan* answer) {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return go_on; });
    return plan(request, graph, answer);
  };
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape"));

  agent_.PushAllocs(0, 20'000);

  EXPECT_TRUE(Eventually([&] {
    return peer_.Of(agent_.hello.session_id).addresses.size() == 20'000;
  }));
  {
    const std::lock_guard lock(mutex);
    go_on = true;
  }
  wake.notify_all();
  EXPECT_EQ(agent_.ReceiveType(REPRISE_MSG_PLAN)->type, REPRISE_MSG_PLAN);
}

TEST_F(PlanRelayTest, StoppingDoesNotWaitForASolver) {
  std::atomic<bool> over{false};
  peer_.planner = [&](const v1::PlanRequest&, const v1::StepGraph&, v1::Plan*) {
    Eventually([&] { return over.load(); });
    return grpc::Status::OK;
  };
  ASSERT_TRUE(agent_.SendGraph(kGraph, "0.5x", "tape"));
  ASSERT_TRUE(Eventually([&] { return peer_.plans_asked == 1; }));

  collector_.reset();  // must return although the solver is still running

  EXPECT_FALSE(over);
  over = true;
  peer_.Suspend();  // ends the solver while its locals still exist
}

}  // namespace
}  // namespace reprise::server
