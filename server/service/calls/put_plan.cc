// SPDX-License-Identifier: Apache-2.0
//
// PutPlan and SetRunGraph: what the daemon of a machine forwards of a run beside
// its sessions.
#include "base/str_cat.h"
#include "formats/convert/digest.h"
#include "formats/convert/plan_proto.h"
#include "server/core/log.h"
#include "server/service/calls/handlers.h"
#include "server/service/planning/stored_plan.h"
#include "server/store/plan_rows.h"
#include "server/store/quota_rows.h"
#include "server/store/run_rows.h"
#include "server/store/session_rows.h"

namespace reprise::server {

namespace {

// Checks that the plan is what it says to be; INVALID_ARGUMENT.
Status Referee(const v1::PutPlanRequest& request, const v1::StepGraph& stored) {
  const v1::Plan& plan = request.plan();
  const auto named = [&](const Status& status) -> Status {
    if (status.ok()) return status;
    return InvalidArgument(
        StrCat("plan ", plan.plan_id(), ": ", status.message()));
  };
  const v1::Capabilities& asked = request.request().capabilities();
  if (plan.plan_id() != formats::PlanId(plan, asked)) {
    return named(InvalidArgument("its id is not that of its content"));
  }
  const StatusOr<StoredPlan> walked = WalkPlan(stored, plan, asked);
  RETURN_IF_ERROR(named(walked.status()));
  if (!plan.feasible() || walked->reserve_bytes >= 0) return OkStatus();
  return named(
      InvalidArgument(StrCat("it needs ", walked->evaluation.peak_bytes,
                             " bytes and says ", plan.peak_bytes())));
}

Status CheckIds(const std::string& run_id, const std::string& graph_id) {
  RETURN_IF_ERROR(CheckIdentifier("run_id", run_id));
  return formats::ParseHexId(graph_id).status();
}

}  // namespace

StatusOr<v1::PutPlanResponse> PutPlan(Services& services,
                                      const v1::PutPlanRequest& request) {
  const v1::Plan& plan = request.plan();
  RETURN_IF_ERROR(CheckIds(request.run_id(), plan.graph_id()));
  RETURN_IF_ERROR(formats::ParseHexId(plan.plan_id()).status());
  ASSIGN_OR_RETURN(v1::StepGraph graph,
                   services.store.Get(LoadGraph, plan.graph_id()));
  RETURN_IF_ERROR(Referee(request, graph));
  const PlanRow row{.plan = plan, .request = request.request()};
  bool is_new = false;
  RETURN_IF_ERROR(services.store.Write([&](Database& db) -> Status {
    const int64_t now_ns = RealtimeNs();
    const Status known = LoadPlan(db, plan.plan_id()).status();
    is_new = known.code() == Code::kNotFound;
    if (!known.ok() && !is_new) return known;
    RETURN_IF_ERROR(EnsureRun(db, request.run_id(), now_ns));
    if (is_new) {
      ASSIGN_OR_RETURN(const int64_t bytes, BytesToSave(db, row));
      RETURN_IF_ERROR(
          TakeRoom(db, services.quota, request.run_id(), "plan", bytes));
      RETURN_IF_ERROR(SavePlan(db, row, now_ns));
    }
    if (!request.newest()) return OkStatus();
    return SetRunPlan(db, request.run_id(), plan.plan_id());
  }));
  if (is_new) {
    LogInfo("plan_stored",
            StrCat("plan ", plan.plan_id(), " of run ", request.run_id(),
                   ", made by another daemon: ", plan.sentence()),
            {{"run_id", request.run_id()}, {"plan_id", plan.plan_id()}});
  }
  services.hub.Notify(request.run_id());
  return v1::PutPlanResponse();
}

StatusOr<v1::SetRunGraphResponse> SetRunGraph(
    Services& services, const v1::SetRunGraphRequest& request) {
  RETURN_IF_ERROR(CheckIds(request.run_id(), request.graph_id()));
  RETURN_IF_ERROR(services.store.Write([&](Database& db) -> Status {
    RETURN_IF_ERROR(LoadGraph(db, request.graph_id()).status());
    RETURN_IF_ERROR(EnsureRun(db, request.run_id(), RealtimeNs()));
    return server::SetRunGraph(db, request.run_id(), request.graph_id());
  }));
  services.hub.Notify(request.run_id());
  return v1::SetRunGraphResponse();
}

}  // namespace reprise::server
