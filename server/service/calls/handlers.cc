// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/handlers.h"

#include "base/str_cat.h"

namespace reprise::server {

namespace {

constexpr uint32_t kMostStepBuckets = 4096;

// Makes a unary method that runs on the pool for short work. kPatient: what may
// take seconds, as whatever reads a recorded step does until it is indexed.
template <typename Request, typename Response>
Method Unary(Services& services, std::string path,
             StatusOr<Response> (*handler)(Services&, const Request&),
             Lane lane = Lane::kPrompt) {
  return MakeMethod<Request>(
      std::move(path), /*streams=*/false,
      [&services, handler, lane](std::shared_ptr<const Request> request,
                                 std::shared_ptr<Call> call) {
        auto work = [&services, handler, request, call] {
          const StatusOr<Response> response = handler(services, *request);
          if (response.ok()) call->Send(*response);
          call->Finish(response.status());
        };
        if (!services.short_work.Post(std::move(work), lane)) {
          call->Finish(Unavailable("the server is busy or shutting down"));
        }
      });
}

template <typename Request>
Method Streaming(Services& services, std::string path,
                 void (*handler)(Services&, std::shared_ptr<const Request>,
                                 std::shared_ptr<Call>)) {
  return MakeMethod<Request>(
      std::move(path), /*streams=*/true,
      [&services, handler](std::shared_ptr<const Request> request,
                           std::shared_ptr<Call> call) {
        handler(services, std::move(request), std::move(call));
      });
}

void StartWatchRun(Services& services,
                   std::shared_ptr<const v1::WatchRunRequest> request,
                   std::shared_ptr<Call> call) {
  if (request->buckets() > kMostStepBuckets) {
    call->Finish(
        InvalidArgument(StrCat("buckets: must be 0 to ", kMostStepBuckets,
                               ", got ", request->buckets())));
    return;
  }
  services.watcher.Add(request->run_id(), request->buckets(), std::move(call));
}

}  // namespace

void AddMethods(Services& services, MethodTable& table) {
  constexpr auto kPlanner = "/reprise.v1.Planner/";
  constexpr auto kQuery = "/reprise.v1.Query/";
  const auto planner = [&](const char* name) {
    return std::string(kPlanner) + name;
  };
  const auto query = [&](const char* name) {
    return std::string(kQuery) + name;
  };
  table.Add(Streaming(services, planner("GetGraph"), &StartGetGraph));
  table.Add(Streaming(services, planner("Plan"), &StartPlan));
  table.Add(Streaming(services, planner("Sweep"), &StartSweep));
  table.Add(Unary(services, planner("FinishPlan"), &FinishPlan));
  table.Add(Unary(services, planner("GetPlan"), &GetPlan));
  table.Add(Unary(services, planner("Explain"), &Explain, Lane::kPatient));
  table.Add(Unary(services, planner("Verify"), &Verify, Lane::kPatient));
  table.Add(Unary(services, "/reprise.v1.Forward/PutPlan", &PutPlan));
  table.Add(Unary<v1::SetRunGraphRequest, v1::SetRunGraphResponse>(
      services, "/reprise.v1.Forward/SetRunGraph", &SetRunGraph));
  table.Add(Unary(services, query("ListRuns"), &ListRuns));
  table.Add(Unary(services, query("GetRun"), &GetRun));
  table.Add(Streaming(services, query("WatchRun"), &StartWatchRun));
  table.Add(Unary(services, query("GetSteps"), &GetSteps));
  table.Add(
      Unary(services, query("GetTimeline"), &GetTimeline, Lane::kPatient));
  table.Add(Streaming(services, query("ReadStep"), &StartReadStep));
  table.Add(Unary(services, query("GetMemory"), &GetMemory, Lane::kPatient));
  table.Add(
      Unary(services, query("GetSegments"), &GetSegments, Lane::kPatient));
  table.Add(
      Unary(services, query("GetAddresses"), &GetAddresses, Lane::kPatient));
  table.Add(Unary(services, query("GetKernels"), &GetKernels, Lane::kPatient));
  table.Add(Unary(services, query("Compare"), &CompareRuns, Lane::kPatient));
  table.Add(Unary(services, query("GetMoments"), &GetMoments, Lane::kPatient));
  table.Add(Unary(services, query("GetStatus"), &GetStatus));
  table.Add(Unary(services, "/reprise.v1.Control/StartWindow", &StartWindow));
  table.Add(Streaming(services, "/reprise.v1.Control/ApplyBudget",
                      &StartApplyBudget));
  table.Add(Unary(services, "/reprise.v1.Control/ReportEnd", &ReportEnd));
}

}  // namespace reprise::server
