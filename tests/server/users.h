// SPDX-License-Identifier: Apache-2.0
//
// A server with several users, of whom alice and bob have a run each: "run-alice"
// and "run-bob".
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/str_cat.h"
#include "reprise/v1/admin.grpc.pb.h"
#include "tests/server/server_harness.h"

namespace reprise::server {

// One token for each, of 32 characters: "alice-0-0-0...".
inline std::string TokenOf(std::string who) {
  while (who.size() < 32) who += "-0";
  return who;
}

inline DaemonOptions WithUsers(const TemporaryFolder& folder) {
  const std::string path = folder.path() + "/tokens";
  std::ofstream(path) << TokenOf("root") << "\n# people\nalice user "
                      << TokenOf("alice") << "\nbob\tuser " << TokenOf("bob")
                      << "\nalice send " << TokenOf("alice.send")
                      << "\nnode send " << TokenOf("node") << "\nlook viewer "
                      << TokenOf("look") << "\nboss admin " << TokenOf("boss")
                      << "\ngate proxy " << TokenOf("gate") << "\n";
  ::chmod(path.c_str(), 0600);
  DaemonOptions options = TestServer::DefaultOptions();
  options.token_file = path;
  return options;
}

struct Answer {
  int status = 0;
  std::string text;
};

class UsersTest : public ::testing::Test {
 protected:
  UsersTest() : server_(WithUsers(folder_)) {
    // A run of each, with its session, its step graph and a plan.
    for (const char* user : {"alice", "bob"}) {
      auto sender = std::make_unique<Sender>(
          Stub<v1::Ingest>(user), StrCat("s-", user), StrCat("run-", user));
      EXPECT_TRUE(sender->Greet().has_value());
      senders_[user] = std::move(sender);
    }
    graph_ = PutGraph("alice", SmallGraph(), "run-alice", "");
    v1::StepGraph other = SmallGraph();
    other.set_name("another");
    bobs_graph_ = PutGraph("bob", other, "run-bob", "");
    const Answer plan =
        Post("alice", "Planner/Plan",
             R"({"runId":"run-alice","graphId":"$graph","budget":"0.9x"})");
    EXPECT_EQ(plan.status, 200) << plan.text;
    const size_t at = plan.text.find("\"planId\":\"");
    plan_ = plan.text.substr(at + 10, 16);
  }

  static std::string Header(const std::string& who) {
    // "gate/alice": the proxy, for alice.
    const size_t slash = who.find('/');
    std::string header =
        StrCat("Authorization: Bearer ", TokenOf(who.substr(0, slash)), "\r\n");
    if (slash != std::string::npos) {
      header += StrCat("X-Forwarded-User: ", who.substr(slash + 1), "\r\n");
    }
    return header;
  }

  Answer Ask(const std::string& start, const std::string& headers,
             const std::string& body = "") const {
    const std::string text = server_.HttpWithoutToken(
        StrCat(start, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
               headers, "Content-Length: ", body.size(), "\r\n\r\n", body));
    // Without an answer the server has only closed the connection.
    return {.status = text.empty() ? 0 : std::stoi(text.substr(9, 3)),
            .text = text};
  }

  Answer Post(const std::string& who, const std::string& call,
              std::string body) const {
    for (const auto& [name, value] :
         {std::pair<std::string, std::string>("$graph", graph_),
          {"$plan", plan_},
          {"$own", bobs_graph_}}) {
      const size_t at = body.find(name);
      if (at != std::string::npos) body.replace(at, name.size(), value);
    }
    return Ask(StrCat("POST /reprise.v1.", call),
               "Content-Type: application/json\r\n" + Header(who), body);
  }

  template <typename Service>
  typename Service::Stub& Stub(const std::string& who) {
    static std::map<std::string, std::unique_ptr<typename Service::Stub>> stubs;
    auto& stub = stubs[who + server_.daemon().grpc_address()];
    if (stub == nullptr) {
      stub = Service::NewStub(
          ChannelTo(server_.daemon().grpc_address(), TokenOf(who)));
    }
    return *stub;
  }

  std::string PutGraph(const std::string& who, const v1::StepGraph& graph,
                       const std::string& run_id, const std::string& graph_id,
                       grpc::Status* status = nullptr) {
    grpc::ClientContext context;
    v1::GraphRef ref;
    const auto writer = Stub<v1::Planner>(who).PutGraph(&context, &ref);
    v1::GraphPart part;
    part.set_run_id(run_id);
    part.set_graph_id(graph_id);
    part.set_data(graph.SerializeAsString());
    writer->Write(part);
    writer->WritesDone();
    const grpc::Status ended = writer->Finish();
    if (status == nullptr) {
      EXPECT_TRUE(ended.ok()) << ended.error_message();
    } else {
      *status = ended;
    }
    return ref.graph_id();
  }

  // How a session that is opened with these ids ends; OK: it is welcome.
  grpc::Status Greet(const std::string& who, const std::string& session_id,
                     const std::string& run_id) {
    Sender sender(Stub<v1::Ingest>(who), session_id, run_id, /*epoch=*/2);
    if (sender.Greet().has_value()) return grpc::Status::OK;
    return sender.Finish();
  }

  TemporaryFolder folder_;
  TestServer server_;
  std::map<std::string, std::unique_ptr<Sender>> senders_;
  std::string graph_;
  std::string bobs_graph_;
  std::string plan_;
};

}  // namespace reprise::server
