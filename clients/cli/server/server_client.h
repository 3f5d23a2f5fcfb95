// SPDX-License-Identifier: Apache-2.0
//
// The command's client for the server: finds it, calls it over gRPC, and
// converts errors to Status. Plain text is used on loopback only: a server
// elsewhere is reached over TLS, or through `ssh -L`.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "clients/cli/core/console.h"
#include "reprise/v1/planner.grpc.pb.h"
#include "reprise/v1/query.grpc.pb.h"

namespace reprise::cli {

// What an error says last where no server is there.
inline constexpr char kStartHint[] = "start one with `reprise serve`";

struct Endpoint {
  std::string target;  // "127.0.0.1:7070"
  std::string url;     // "http://127.0.0.1:7070", for the page
  std::string token;   // what the server requires; empty: unknown
  bool tls = false;
  std::string ca;      // file; empty: those of the machine
  std::string pinned;  // the only certificate to trust, a file
  std::string certificate;
  std::string key;
  // Without TLS, whose listener may be given the token.
  std::vector<uint32_t> trusted;

  // Returns OK if whoever listens there may be given the token: TLS has shown
  // who it is, or it is a process of a trusted user. Errors as CheckListener.
  Status CheckReceiver() const;

  // Returns the URL of the page at `path` ("/runs/1"). With the token, the link
  // opens in every browser on this machine: show it to a person, never log it.
  std::string Page(const std::string& path, bool with_token) const;
};

// Returns whether --server or REPRISE_SERVER names one.
bool NamesServer(const Globals& globals);

// Finds the server: --server, else REPRISE_SERVER, else server.json next to the
// agent's socket. The token is from --token-file, else REPRISE_TOKEN_FILE, else
// from the file that server.json names if it describes the same server.
// INVALID_ARGUMENT: not HOST:PORT, or not a loopback address; UNAVAILABLE: no
// server is known; PERMISSION_DENIED: somebody else wrote what is said of it;
// NOT_FOUND and others: the token's file cannot be read.
StatusOr<Endpoint> FindServer(const Globals& globals);

// Parses "host:port", "http://host:port" or "https://host:port".
// INVALID_ARGUMENT as FindServer.
StatusOr<Endpoint> ParseEndpoint(const std::string& text);

class ServerClient {
 public:
  // UNAVAILABLE: nothing answers there within two seconds. PERMISSION_DENIED:
  // what listens there is not the token's owner's.
  static StatusOr<ServerClient> Connect(const Globals& globals);

  // Like Connect, but if no server was named and none runs, starts a private
  // daemon on the data stored here. If nothing is stored, only `to_store`
  // starts one.
  static StatusOr<ServerClient> ConnectOrStart(const Globals& globals,
                                               bool to_store = false);

  const Endpoint& endpoint() const { return endpoint_; }
  // For client-streaming calls (formats/import).
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Each but GetMemory waits at most ten seconds for its answer.
  StatusOr<v1::ServerStatus> GetStatus() const;
  StatusOr<v1::Run> GetRun(const std::string& run_id) const;
  // Newest first, at most `limit`; `mine`: those that this caller sent.
  StatusOr<v1::ListRunsResponse> ListRuns(uint32_t limit,
                                          bool mine = false) const;
  StatusOr<v1::GetMomentsResponse> GetMoments(const std::string& run_id) const;
  // What is alive at the peak of the newest traced step, with the `limit`
  // largest allocations. Waits a minute.
  StatusOr<v1::LiveMemory> GetMemory(const std::string& run_id, bool planned,
                                     uint32_t limit) const;
  StatusOr<v1::Explanation> Explain(const std::string& plan_id) const;
  StatusOr<v1::Verification> Verify(const std::string& plan_id) const;
  // Of two runs or plans, by their ids.
  StatusOr<v1::Comparison> Compare(const std::string& a,
                                   const std::string& b) const;
  StatusOr<v1::StepGraph> GetGraph(const std::string& graph_id) const;
  StatusOr<v1::WindowStatus> StartWindow(const std::string& run_id,
                                         uint32_t steps,
                                         uint64_t at_step) const;

  // How the process ended that was started for a run.
  Status ReportEnd(const std::string& run_id, const v1::ProcessEnd& end) const;

  // Passes on the records of the newest traced step, part by part.
  Status ReadStep(const std::string& run_id, bool planned,
                  const std::function<void(const v1::StepPart&)>& take) const;

  // Plans on the server and shows progress on the console. Ctrl-C asks for the
  // best plan so far.
  StatusOr<v1::Plan> Plan(const v1::PlanRequest& request,
                          Console& console) const;
  // Plans the step of a running job within another budget and sends the plan to
  // it; progress on the console. A plan that is not feasible was not sent.
  StatusOr<v1::Plan> ApplyBudget(const std::string& run_id,
                                 const std::string& budget,
                                 Console& console) const;
  // Calls `on_point` for every point, largest budget first. Ctrl-C ends the
  // stream after the points so far.
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
