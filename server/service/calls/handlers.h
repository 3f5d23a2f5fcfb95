// SPDX-License-Identifier: Apache-2.0
//
// The dependencies shared by all handlers, and the list of handlers. Those
// about one thing share a file; proto/reprise/v1 documents them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "reprise/v1/admin.pb.h"
#include "reprise/v1/forward.pb.h"
#include "reprise/v1/planner.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/core/byte_share.h"
#include "server/core/caller.h"
#include "server/core/metrics.h"
#include "server/service/calls/method.h"
#include "server/service/calls/watch_run.h"
#include "server/service/calls/worker_pool.h"
#include "server/service/memory/step_cache.h"
#include "server/service/planning/answer_cache.h"
#include "server/service/planning/planning.h"
#include "server/service/runs/run_list.h"
#include "server/store/quota_rows.h"
#include "server/store/run_hub.h"
#include "server/store/store.h"

namespace reprise::server {

// Fills the fields that only the daemon knows: addresses, agents, sizes.
using StatusFiller = std::function<void(v1::ServerStatus&)>;

// Asks the connected sessions of a run to record; returns the number of
// sessions.
using WindowOpener =
    std::function<int(const std::string& run_id, const v1::OpenWindow&)>;

// Sends a plan to the connected sessions of a run, in the place of `replaces`;
// returns the number of sessions.
using PlanPusher =
    std::function<int(const std::string& run_id, const v1::Plan& plan,
                      const std::string& replaces)>;

// A trade-off curve that was sent.
struct KeptCurve {
  std::vector<v1::TradeoffPoint> points;  // each budget once, in their order
  // How long the search took if it was its limit that ended it, and until when
  // it may be taken for the best there is; 0: it ended by itself.
  std::chrono::milliseconds cut_after{0};
  std::chrono::steady_clock::time_point cut_until;
};

// An explanation, and the stored plan that it is of.
struct KeptExplanation {
  std::string plan;  // serialized
  v1::Explanation explanation;
};

// Shared by all handlers; must outlive all calls.
struct Services {
  Store& store;
  RunHub& hub;
  Metrics& metrics;
  Planning& planning;
  RunWatcher& watcher;
  WorkerPool& short_work;
  WorkerPool& planners;
  ByteShare& sent_graphs;  // of PutGraph calls in progress, over gRPC and HTTP
  StatusFiller fill_status;
  WindowOpener open_window;
  PlanPusher push_plan;
  IdentifyCaller identify;
  Authenticate authenticate;
  RunFollowers& followers;
  // What is stored of one run at most (quota_rows.h).
  Quota quota;
  RunList runs = RunList();
  StepCache steps = StepCache();
  AnswerCache<KeptCurve> curves = AnswerCache<KeptCurve>();
  AnswerCache<KeptExplanation> explanations = AnswerCache<KeptExplanation>();
};

// Methods with one answer, and methods that send any number.
template <typename Request, typename Response>
using Answer = StatusOr<Response>(Services&, const Request&);
template <typename Request>
using Stream = Status(Services&, const Request&, Call&);

// ---- Planner ----

// Says that `sent_graphs` has no room for the next bytes of a step graph.
Status NoRoomForGraph(const Services& services);

// Stores a graph that was received whole and logs who sent it. `read` returns the serialized StepGraph, or what is wrong with what was sent. Both
// ids may be empty.
StatusOr<v1::GraphRef> ReceiveGraph(
    Services& services, const Caller& caller, const std::string& run_id,
    const std::string& graph_id,
    const std::function<StatusOr<std::string>()>& read);
Stream<v1::GraphRef> SendGraph;
Stream<v1::PlanRequest> MakePlan;
Lane LaneOf(const v1::PlanRequest& request);
// What a call gets of a search for a plan, and the plan.
PlanningHooks HooksOf(Call& call);
void SendPlan(v1::Plan plan, Call& call);
Stream<v1::SweepRequest> SendCurve;
Answer<v1::FinishPlanRequest, v1::FinishPlanResponse> FinishPlan;
Answer<v1::GetPlanRequest, v1::Plan> GetPlan;
Answer<v1::ExplainRequest, v1::Explanation> Explain;
Answer<v1::VerifyRequest, v1::Verification> Verify;

// ---- Forward ----

Answer<v1::PutPlanRequest, v1::PutPlanResponse> PutPlan;
Answer<v1::SetRunGraphRequest, v1::SetRunGraphResponse> SetRunGraph;

// ---- Query ----

Answer<v1::ListRunsRequest, v1::ListRunsResponse> ListRuns;
Answer<v1::GetRunRequest, v1::Run> GetRun;
Answer<v1::GetStepsRequest, v1::StepBuckets> GetSteps;
Answer<v1::TimelineRequest, v1::Timeline> GetTimeline;
Stream<v1::ReadStepRequest> ReadStep;
Answer<v1::GetMemoryRequest, v1::LiveMemory> GetMemory;
Answer<v1::CompareRequest, v1::Comparison> CompareRuns;
Answer<v1::GetMomentsRequest, v1::GetMomentsResponse> GetMoments;
Answer<v1::StatusRequest, v1::ServerStatus> GetStatus;

// ---- Control ----

Answer<v1::StartWindowRequest, v1::WindowStatus> StartWindow;
Stream<v1::ApplyBudgetRequest> ApplyBudget;
Answer<v1::ReportEndRequest, v1::ReportEndResponse> ReportEnd;

// ---- Admin ----

Answer<v1::RemoveRunsRequest, v1::RemoveRunsResponse> RemoveRuns;

// Limits for runs that have ended; 0: no limit.
struct Retention {
  int64_t seconds = 0;
  int64_t bytes = 0;
};

// Removes runs beyond the limits, oldest first, a few per call so that no call
// takes long. Returns how many were removed; 0: nothing is left to remove.
StatusOr<int> ApplyRetention(Store& store, RunHub& hub, const Retention& limits,
                             int64_t now_ns);

// Adds every unary and server-streaming method.
void AddMethods(Services& services, MethodTable& table);

// Returns what logs, of every call that changes something, who made it and how it
// ended. The services must outlive it.
CallWrapper MakeChangeLog(Services& services);

}  // namespace reprise::server
