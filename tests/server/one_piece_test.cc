// SPDX-License-Identifier: Apache-2.0
//
// Step graphs sent over HTTP, and streams answered as one JSON document.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "formats/convert/graph_json.h"
#include "server/net/connect.h"
#include "server/net/import_upload.h"
#include "tests/server/log_lines.h"
#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kJson[] = "application/json";
constexpr char kPutGraph[] = "/reprise.v1.Planner/PutGraph";

std::string BodyOf(const std::string& response) {
  return response.substr(response.find("\r\n\r\n") + 4);
}

// Calls a method with application/json and returns the body of a 200.
json Ask(const TestServer& server, const std::string& method,
         const std::string& body) {
  const std::string response =
      server.Post(StrCat("/reprise.v1.", method), kJson, body);
  EXPECT_THAT(response, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(response, HasSubstr("Content-Type: application/json"));
  return json::parse(BodyOf(response));
}

// ---- PutGraph ----

TEST(PutGraphOverHttpTest, TakesAFileAndBothFormsOfTheMessage) {
  TestServer server;
  const v1::StepGraph graph = SmallGraph();
  const std::string sent_over_grpc = server.PutGraph(graph, "");
  std::string proto_json;
  ASSERT_TRUE(
      google::protobuf::util::MessageToJsonString(graph, &proto_json).ok());

  for (const auto& [type, body] :
       {std::pair{"application/json", formats::WriteGraphText(graph)},
        {"application/json; charset=utf-8", proto_json},
        {"application/proto", graph.SerializeAsString()}}) {
    const std::string response = server.Post(kPutGraph, type, body);
    EXPECT_THAT(response, StartsWith("HTTP/1.1 200")) << type;
    EXPECT_EQ(json::parse(BodyOf(response))["graphId"], sent_over_grpc);
  }
}

TEST(PutGraphOverHttpTest, BelongsToTheRunOfTheQueryAndIsLogged) {
  TestServer server;
  LogLines log;

  const std::string response =
      server.Post(StrCat(kPutGraph, "?runId=run-7&graphId=00000000000000ab"),
                  kJson, formats::WriteGraphText(SmallGraph()));

  EXPECT_EQ(json::parse(BodyOf(response))["graphId"], "00000000000000ab");
  EXPECT_EQ(server.GetRun("run-7").graph_id(), "00000000000000ab");
  const auto change = log.OnlyChange();
  EXPECT_EQ(change["action"], "graph");
  EXPECT_EQ(change["run_id"], "run-7");
  EXPECT_EQ(change["subject"], "graph 00000000000000ab");
  EXPECT_EQ(change["outcome"], "ok");
}

TEST(PutGraphOverHttpTest, SaysWhereTheTextIsWrongAndLogsIt) {
  TestServer server;
  LogLines log;
  const std::string torn = formats::WriteGraphText(SmallGraph()).substr(0, 100);

  const std::string response = server.Post(kPutGraph, kJson, torn);

  EXPECT_THAT(response, StartsWith("HTTP/1.1 400"));
  const json error = json::parse(BodyOf(response));
  EXPECT_EQ(error["code"], "invalid_argument");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("byte 100"));
  const auto change = log.OnlyChange();
  EXPECT_EQ(change["outcome"], "invalid_argument");
  EXPECT_EQ(change["detail"], error["message"]);
}

TEST(PutGraphOverHttpTest, RefusesWhatItWouldNotKeepBeforeItIsSent) {
  TestServer server;
  const auto head = [&](const std::string& method, const std::string& type,
                        uint64_t bytes) {
    return server.Http(StrCat(method, " ", kPutGraph,
                              " HTTP/1.1\r\nHost: localhost\r\nConnection: "
                              "close\r\nContent-Type: ",
                              type, "\r\nContent-Length: ", bytes, "\r\n\r\n"));
  };

  EXPECT_THAT(head("POST", kJson, kMaxGraphUploadBytes + 1),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(head("POST", "text/plain", 0), StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(head("GET", kJson, 0), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(server.HttpWithoutToken(
                  StrCat("POST ", kPutGraph,
                         " HTTP/1.1\r\nHost: localhost\r\nConnection: "
                         "close\r\nContent-Type: application/json\r\n"
                         "Content-Length: 2\r\n\r\n{}")),
              StartsWith("HTTP/1.1 401"));
}

// Four uploads hold all of the limit but 64 KiB; the fifth does not fit, whether
// it comes over HTTP or over gRPC. A body counts by parts of 256 KiB: each of
// the four sends four parts and a byte.
TEST(PutGraphOverHttpTest, GraphsThatAreBeingSentHaveALimitTogether) {
  DaemonOptions options = TestServer::DefaultOptions();
  options.max_sent_graph_bytes = (4 << 20) + (64 << 10);
  TestServer server(options);
  const auto head = [&](size_t bytes) {
    return StrCat("POST ", kPutGraph, " HTTP/1.1\r\nHost: localhost\r\n",
                  server.authorization(),
                  "Connection: close\r\nContent-Type: application/json\r\n"
                  "Content-Length: ",
                  bytes, "\r\n\r\n");
  };
  const std::string part((1 << 20) + 1, ' ');
  const auto hold = [&] {
    const int fd = ConnectTo(server.daemon().http_address());
    const std::string request = head(part.size() + 1) + part;
    EXPECT_EQ(::send(fd, request.data(), request.size(), 0),
              static_cast<ssize_t>(request.size()));
    return fd;
  };
  const auto answered = [](int fd) {
    char byte = 0;
    return ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 ||
           (errno != EAGAIN && errno != EWOULDBLOCK);
  };
  std::vector<int> sending;
  for (int i = 0; i < 4; ++i) sending.push_back(hold());
  const std::string graph =
      formats::WriteGraphText(SmallGraph()) + std::string(100'000, '\n');

  // While the server still reads the four, the fifth may be first: then one of
  // the four is refused. It is sent again.
  const auto four_and = [&](const std::function<bool()>& fifth_is_refused) {
    return Eventually([&] {
      for (int& fd : sending) {
        if (!answered(fd)) continue;
        ::close(fd);
        fd = hold();
      }
      return fifth_is_refused();
    });
  };
  std::string refused;
  EXPECT_TRUE(four_and([&] {
    refused = server.Post(kPutGraph, kJson, graph);
    return refused.starts_with("HTTP/1.1 429");
  })) << refused;
  EXPECT_THAT(refused,
              HasSubstr("step graphs that are being sent may have 4.1 MiB "
                        "together, and this one does not fit now"));
  EXPECT_TRUE(four_and([&] {
    grpc::ClientContext context;
    v1::GraphRef ref;
    const auto writer = server.planner().PutGraph(&context, &ref);
    v1::GraphPart over_grpc;
    over_grpc.set_data(part);
    writer->Write(over_grpc);
    writer->WritesDone();
    return writer->Finish().error_code() ==
           grpc::StatusCode::RESOURCE_EXHAUSTED;
  }));

  // What an upload held is free when it is given up.
  for (const int fd : sending) ::close(fd);
  EXPECT_TRUE(Eventually([&] {
    return server.Post(kPutGraph, kJson, graph).starts_with("HTTP/1.1 200");
  }));
}

// ---- Streams in one piece ----

TEST(OnePieceTest, APlanIsAnsweredWithoutItsProgress) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");
  LogLines log;

  const json plan =
      Ask(server, "Planner/Plan",
          StrCat(R"({"budget":"0.9x","graphId":")", graph_id, "\"}"));

  EXPECT_EQ(plan["graphId"], graph_id);
  EXPECT_EQ(plan["feasible"], true);
  const auto change = log.OnlyChange();
  EXPECT_EQ(change["action"], "plan");
  EXPECT_EQ(change["outcome"], "ok");
}

TEST(OnePieceTest, ACurveHasEachBudgetOnceLargestFirst) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");

  const json curve = Ask(server, "Planner/Sweep",
                         StrCat(R"({"points":5,"graphId":")", graph_id, "\"}"));

  ASSERT_GE(curve["points"].size(), 2u);
  for (size_t i = 1; i < curve["points"].size(); ++i) {
    const auto bytes = [&](size_t at) {
      return std::stoll(curve["points"][at]["budgetBytes"].get<std::string>());
    };
    EXPECT_GT(bytes(i - 1), bytes(i));
  }
}

// The first number after `name` in /metrics.
std::string MetricOf(const TestServer& server, const std::string& name) {
  const std::string text = server.Http(
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos
             ? "absent"
             : text.substr(at + name.size() + 2,
                           text.find('\n', at + 1) - at - name.size() - 2);
}

TEST(OnePieceTest, ACurveIsSearchedOnceForAllWhoAskForIt) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");
  const auto curve = [&](const std::string& more) {
    return Ask(server, "Planner/Sweep",
               StrCat("{\"graphId\":\"", graph_id, "\"", more, "}"));
  };

  const json first = curve("");
  const json again =
      curve(R"(,"points":21,"timeLimitMs":1000,"requestId":"r")");

  EXPECT_EQ(again, first);
  EXPECT_EQ(MetricOf(server, "reprise_curves_made_total"), "1");
  curve(R"(,"points":5)");
  EXPECT_EQ(MetricOf(server, "reprise_curves_made_total"), "2");
}

TEST(OnePieceTest, APlanIsExplainedOnceForAllWhoAskForIt) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");
  const auto planned = [&] {
    const json plan =
        Ask(server, "Planner/Plan",
            StrCat(R"({"budget":"0.9x","graphId":")", graph_id, "\"}"));
    return StrCat("{\"planId\":", plan["planId"].dump(), "}");
  };
  const std::string plan = planned();

  const json first = Ask(server, "Planner/Explain", plan);

  EXPECT_EQ(Ask(server, "Planner/Explain", plan), first);
  EXPECT_EQ(MetricOf(server, "reprise_explanations_made_total"), "1");
  // Made again, it was found after another time: that is part of the answer.
  ASSERT_EQ(planned(), plan);
  const json stored = Ask(server, "Planner/GetPlan", plan);
  EXPECT_EQ(Ask(server, "Planner/Explain", plan)["plan"], stored);
}

TEST(OnePieceTest, AStepGraphIsAFileThatCanBeSentBack) {
  TestServer server;
  const std::string graph_id = server.PutGraph(SmallGraph(), "");

  const json file = Ask(server, "Planner/GetGraph",
                        StrCat("{\"graphId\":\"", graph_id, "\"}"));

  EXPECT_EQ(file["format"], "reprise.graph/1");
  const std::string again = server.Post(kPutGraph, kJson, file.dump());
  EXPECT_EQ(json::parse(BodyOf(again))["graphId"], graph_id);
}

TEST(OnePieceTest, ARunThatGoesOnIsAnsweredAsItIsNow) {
  TestServer server;
  Sender sender(server.ingest(), "s1", "run-1");
  ASSERT_TRUE(sender.Greet());

  // It would wait forever for a run that does not end.
  const json event =
      Ask(server, "Query/WatchRun", R"({"runId":"run-1","buckets":10})");

  EXPECT_EQ(event["run"]["runId"], "run-1");
  EXPECT_EQ(event["run"]["state"], "RUN_STATE_RUNNING");
}

TEST(OnePieceTest, ErrorsAreThoseOfTheStreamAsHttp) {
  TestServer server;
  const auto ask = [&](const char* method, const char* body) {
    return server.Post(StrCat("/reprise.v1.", method), kJson, body);
  };

  EXPECT_THAT(
      ask("Planner/Plan", R"({"graphId":"00000000000000ff","budget":"1.0x"})"),
      StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("Query/ReadStep", R"({"runId":"nothing"})"),
              StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(ask("Control/ApplyBudget", R"({"runId":"nothing"})"),
              StartsWith("HTTP/1.1 404"));
}

// ---- The bound ----

class KeptReply final : public HttpReply {
 public:
  void Respond(HttpResponse response) override { answer = std::move(response); }
  void BeginStream(int, HttpHeaders) override {}
  void Write(std::string) override {}
  void End() override {}
  size_t unsent() const override { return 0; }
  bool cancelled() const override { return false; }

  HttpResponse answer;
};

TEST(OnePieceTest, AnAnswerThatIsTooLargeEndsTheCall) {
  const auto reply = std::make_shared<KeptReply>();
  const auto call = MakeOnePieceCall(reply, HttpRequest());
  v1::StepPart part;
  part.add_names()->set_text(std::string(kMaxOnePieceBytes / 2, 'x'));

  call->Send(part);
  EXPECT_FALSE(call->cancelled());
  call->Send(part);
  EXPECT_TRUE(call->cancelled());
  call->Finish(Cancelled("the client left"));

  EXPECT_EQ(reply->answer.status, 429);
  EXPECT_THAT(reply->answer.body, HasSubstr("larger than 32.0 MiB"));
}

}  // namespace
}  // namespace reprise::server
