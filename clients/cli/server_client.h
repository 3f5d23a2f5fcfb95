// SPDX-License-Identifier: Apache-2.0
//
// The server, seen from the command: finding it, calling it over gRPC, and
// its errors as our Status. Plain text on loopback only: a server elsewhere is
// reached over TLS, or through `ssh -L`.
#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "clients/cli/console.h"
#include "reprise/v1/planner.grpc.pb.h"
#include "reprise/v1/query.grpc.pb.h"

namespace reprise::cli {

struct Endpoint {
  std::string target;  // "127.0.0.1:7070"
  std::string url;     // "http://127.0.0.1:7070", for the page
  std::string token;   // what the server asks for; empty: not known
  bool tls = false;
  std::string ca;      // file; empty: those of the machine
  std::string pinned;  // file of the one certificate that is trusted instead
  std::string certificate;
  std::string key;

  // The page below `path` ("/runs/1"). With the token the link opens in every
  // browser of this machine: for a person's eyes, never for a log.
  std::string Page(const std::string& path, bool with_token) const;
};

// --server, else REPRISE_SERVER, else server.json beside the agent's socket;
// with the token of --token-file, else REPRISE_TOKEN_FILE, else of the file
// that server.json names, where it speaks of the same server.
// INVALID_ARGUMENT: not HOST:PORT, or not a loopback address; UNAVAILABLE: no
// server is known; NOT_FOUND and others: the token's file cannot be read.
StatusOr<Endpoint> FindServer(const Globals& globals);

// "host:port", "http://host:port" or "https://host:port". INVALID_ARGUMENT as
// FindServer.
StatusOr<Endpoint> ParseEndpoint(const std::string& text);

class ServerClient {
 public:
  // UNAVAILABLE: nothing answers there within two seconds.
  static StatusOr<ServerClient> Connect(const Globals& globals);

  // As Connect; where no server was named and none runs, a private daemon is
  // started for what is stored here. Where nothing is, that takes `to_store`.
  static StatusOr<ServerClient> ConnectOrStart(const Globals& globals,
                                               bool to_store = false);

  const Endpoint& endpoint() const { return endpoint_; }
  // For streams that go up (formats/import).
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Each waits at most ten seconds for its answer.
  StatusOr<v1::ServerStatus> GetStatus() const;
  StatusOr<v1::Run> GetRun(const std::string& run_id) const;
  // The newest first, at most `limit`.
  StatusOr<v1::ListRunsResponse> ListRuns(uint32_t limit) const;
  StatusOr<v1::GetMomentsResponse> GetMoments(const std::string& run_id) const;
  StatusOr<v1::Plan> GetPlan(const std::string& plan_id) const;
  StatusOr<v1::Explanation> Explain(const std::string& plan_id) const;
  StatusOr<v1::Verification> Verify(const std::string& plan_id) const;
  StatusOr<v1::StepGraph> GetGraph(const std::string& graph_id) const;
  StatusOr<v1::WindowStatus> StartWindow(const std::string& run_id,
                                         uint32_t steps,
                                         uint64_t at_step) const;

  // The records of the newest traced step, part by part.
  Status ReadStep(const std::string& run_id, bool planned,
                  const std::function<void(const v1::StepPart&)>& take) const;

  // Shows progress on the console; Ctrl-C asks for the best plan so far.
  StatusOr<v1::Plan> Plan(const v1::PlanRequest& request,
                          Console& console) const;
  // Calls `on_point` per point, largest budget first; Ctrl-C ends the stream
  // after the points so far.
  Status Sweep(
      const v1::SweepRequest& request,
      const std::function<void(const v1::TradeoffPoint&)>& on_point) const;

 private:
  explicit ServerClient(Endpoint endpoint) : endpoint_(std::move(endpoint)) {}

  Endpoint endpoint_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<v1::Query::Stub> query_;
  std::shared_ptr<v1::Planner::Stub> planner_;
};

}  // namespace reprise::cli
