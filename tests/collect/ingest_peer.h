// SPDX-License-Identifier: Apache-2.0
//
// A test server for ingest.proto and planner.proto that keeps everything it
// receives for the test to inspect. It is as strict as the real server: it
// answers a missing seq with Resend, ignores a repeated one and checks every
// checksum. It does not support two streams of one session at the same time.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "reprise/v1/ingest.grpc.pb.h"
#include "reprise/v1/planner.grpc.pb.h"

namespace reprise::server {

// Everything received from one session, over all its epochs.
struct Received {
  v1::SessionInfo info;
  std::string run_id;
  std::map<uint64_t, uint64_t> committed;  // by epoch
  std::vector<uint64_t> addresses;         // ptr of ALLOC, in order
  std::vector<uint64_t> losses;            // count of LOSS
  std::map<uint32_t, uint64_t> kinds;      // rows by kind
  std::vector<v1::StepReport> steps;
  std::vector<v1::VerifyReport> checks;
  std::vector<v1::PlanState> states;
  std::vector<v1::Moment> moments;
  std::map<uint32_t, std::string> names;
  uint64_t unnamed = 0;  // rows that arrived before the name they refer to
  uint64_t dropped_before = 0;
  std::vector<v1::Lost> lost;
  std::vector<v1::Bye> byes;
  uint64_t chunks = 0;
  uint64_t repeated_chunks = 0;
  int streams = 0;
};

class IngestPeer : public v1::Ingest::Service, public v1::Planner::Service {
 public:
  IngestPeer();
  ~IngestPeer() override;

  std::string address() const { return address_; }
  std::shared_ptr<grpc::Channel> Channel();

  // Ends all streams and stops listening. Resume listens on the same address
  // again and keeps what was received.
  void Suspend();
  void Resume();

  Received Of(const std::string& session_id) const;
  Received Of(const char (&session_id)[40]) const {
    return Of(std::string(session_id));
  }
  std::vector<std::string> Sessions() const;
  void Forget();  // forgets everything, like a server that lost its database

  // While set, takes chunks, discards them and does not acknowledge them.
  std::atomic<bool> deaf{false};
  // Refuses chunks that contain this address with INVALID_ARGUMENT.
  std::atomic<uint64_t> poison{0};
  std::atomic<uint32_t> max_inflight{64};
  // Checks and counts chunks without keeping their addresses.
  std::atomic<bool> forgetful{false};

  // Answers Plan; the graph is the one that PutGraph received.
  std::function<grpc::Status(const v1::PlanRequest&, const v1::StepGraph&,
                             v1::Plan*)>
      planner;
  std::atomic<int> plans_asked{0};
  // Sends a plan to the agent over the session's stream.
  bool PushPlan(const std::string& session_id, const v1::PlanRef& plan);

  grpc::Status Stream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::Down, v1::Up>* stream) override;
  grpc::Status PutGraph(grpc::ServerContext* context,
                        grpc::ServerReader<v1::GraphPart>* reader,
                        v1::GraphRef* reference) override;
  grpc::Status Plan(grpc::ServerContext* context,
                    const v1::PlanRequest* request,
                    grpc::ServerWriter<v1::PlanEvent>* writer) override;

 private:
  using Writer = grpc::ServerReaderWriter<v1::Down, v1::Up>;
  void Listen();
  grpc::Status Take(const v1::Chunk& chunk, Received& session, uint64_t epoch,
                    v1::Down& answer);

  mutable std::mutex mutex_;
  std::map<std::string, Received> sessions_;
  std::map<std::string, Writer*> writers_;
  std::map<std::string, v1::StepGraph> graphs_;
  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<grpc::Server> server_;
};

// Polls until `condition` holds. Returns false after `seconds`.
template <typename Condition>
bool Eventually(Condition&& condition, int seconds = 60) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace reprise::server
