// SPDX-License-Identifier: Apache-2.0
//
// The dependencies shared by all handlers, and the list of handlers. Each RPC
// has a file of its own; proto/reprise/v1 documents it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "reprise/v1/forward.pb.h"
#include "reprise/v1/planner.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/core/byte_share.h"
#include "server/core/metrics.h"
#include "server/service/calls/audit.h"
#include "server/service/calls/method.h"
#include "server/service/calls/watch_run.h"
#include "server/service/calls/worker_pool.h"
#include "server/service/memory/step_cache.h"
#include "server/service/planning/answer_cache.h"
#include "server/service/planning/planning.h"
#include "server/service/runs/run_follower.h"
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
  Audit& audit;
  RunFollowers& followers;
  // What is stored of one run at most (quota_rows.h).
  Quota quota;
  RunList runs = RunList();
  StepCache steps = StepCache();
  AnswerCache<KeptCurve> curves = AnswerCache<KeptCurve>();
  AnswerCache<KeptExplanation> explanations = AnswerCache<KeptExplanation>();
};

// ---- Planner ----

// Stores a graph that was received whole and adds an entry to the audit. `read`
// returns the serialized StepGraph, or what is wrong with what was sent. Both
// ids may be empty.
StatusOr<v1::GraphRef> ReceiveGraph(
    Services& services, const Caller& caller, const std::string& run_id,
    const std::string& graph_id,
    const std::function<StatusOr<std::string>()>& read);
void StartGetGraph(Services& services,
                   std::shared_ptr<const v1::GraphRef> request,
                   std::shared_ptr<Call> call);
void StartPlan(Services& services,
               std::shared_ptr<const v1::PlanRequest> request,
               std::shared_ptr<Call> call);
void StartSweep(Services& services,
                std::shared_ptr<const v1::SweepRequest> request,
                std::shared_ptr<Call> call);
StatusOr<v1::FinishPlanResponse> FinishPlan(
    Services& services, const v1::FinishPlanRequest& request);
StatusOr<v1::Plan> GetPlan(Services& services,
                           const v1::GetPlanRequest& request);
StatusOr<v1::Explanation> Explain(Services& services,
                                  const v1::ExplainRequest& request);
StatusOr<v1::Verification> Verify(Services& services,
                                  const v1::VerifyRequest& request);

// ---- Forward ----

StatusOr<v1::PutPlanResponse> PutPlan(Services& services,
                                      const v1::PutPlanRequest& request);
StatusOr<v1::SetRunGraphResponse> SetRunGraph(
    Services& services, const v1::SetRunGraphRequest& request);

// ---- Query ----

StatusOr<v1::ListRunsResponse> ListRuns(Services& services,
                                        const v1::ListRunsRequest& request);
StatusOr<v1::Run> GetRun(Services& services, const v1::GetRunRequest& request);
StatusOr<v1::StepBuckets> GetSteps(Services& services,
                                   const v1::GetStepsRequest& request);
StatusOr<v1::Timeline> GetTimeline(Services& services,
                                   const v1::TimelineRequest& request);
StatusOr<v1::LiveMemory> GetMemory(Services& services,
                                   const v1::GetMemoryRequest& request);
StatusOr<v1::Segments> GetSegments(Services& services,
                                   const v1::GetSegmentsRequest& request);
StatusOr<v1::Addresses> GetAddresses(Services& services,
                                     const v1::GetAddressesRequest& request);
StatusOr<v1::Kernels> GetKernels(Services& services,
                                 const v1::GetKernelsRequest& request);
StatusOr<v1::Comparison> CompareRuns(Services& services,
                                     const v1::CompareRequest& request);
StatusOr<v1::GetMomentsResponse> GetMoments(
    Services& services, const v1::GetMomentsRequest& request);
StatusOr<v1::ServerStatus> GetStatus(Services& services,
                                     const v1::StatusRequest& request);

void StartReadStep(Services& services,
                   std::shared_ptr<const v1::ReadStepRequest> request,
                   std::shared_ptr<Call> call);

// ---- Control ----

StatusOr<v1::WindowStatus> StartWindow(Services& services,
                                       const v1::StartWindowRequest& request);

void StartApplyBudget(Services& services,
                      std::shared_ptr<const v1::ApplyBudgetRequest> request,
                      std::shared_ptr<Call> call);
StatusOr<v1::ReportEndResponse> ReportEnd(Services& services,
                                          const v1::ReportEndRequest& request);

// Adds every unary and server-streaming method of Planner, Forward, Query and
// Control.
void AddMethods(Services& services, MethodTable& table);

}  // namespace reprise::server
