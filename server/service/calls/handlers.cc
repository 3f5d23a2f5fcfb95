// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/handlers.h"

#include <utility>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

constexpr uint32_t kMostStepBuckets = 4096;

class MethodAdder {
 public:
  MethodAdder(Services& services, MethodTable& table)
      : services_(services), table_(table) {}

  // kPatient: what may take seconds, as whatever reads a recorded step does
  // until it is indexed.
  template <typename Request, typename Response>
  void Add(const char* name, Answer<Request, Response>* answer,
           Lane lane = Lane::kPrompt) {
    Post<Request>(name, /*streams=*/false, services_.short_work, lane,
                  [answer](Services& services, const Request& request,
                           Call& call) -> Status {
                    const StatusOr<Response> made = answer(services, request);
                    if (made.ok()) call.Send(*made);
                    return made.status();
                  });
  }

  template <typename Request>
  void Add(const char* name, Stream<Request>* stream) {
    Post<Request>(name, /*streams=*/true, services_.short_work, Lane::kPrompt,
                  stream);
  }

  template <typename Request, typename Handler>
  void Post(const char* name, bool streams, WorkerPool& pool, Lane lane,
            Handler handler) {
    Start<Request>(name, streams,
                   [=, &services = services_, &pool](
                       std::shared_ptr<const Request> request,
                       std::shared_ptr<Call> call) {
                     auto work = [=, &services] {
                       call->Finish(handler(services, *request, *call));
                     };
                     if (!pool.Post(std::move(work), lane)) {
                       call->Finish(Refusal(services, pool));
                     }
                   });
  }

  // A search that is counted while it waits. `left`: why it ends if the client
  // has left by then.
  template <typename Request>
  void AddSearch(const char* name, Stream<Request>* search,
                 Lane (*lane_of)(const Request&), const char* left) {
    Start<Request>(
        name, /*streams=*/true,
        [=, &services = services_](std::shared_ptr<const Request> request,
                                   std::shared_ptr<Call> call) {
          services.metrics.plans_waiting.Increment();
          auto work = [=, &services] {
            services.metrics.plans_waiting.Decrement();
            call->Finish(call->cancelled() ? Cancelled(left)
                                           : search(services, *request, *call));
          };
          if (services.planners.Post(std::move(work), lane_of(*request))) {
            return;
          }
          services.metrics.plans_waiting.Decrement();
          call->Finish(Refusal(services, services.planners));
        });
  }

  template <typename Request, typename Handler>
  void Start(const char* name, bool streams, Handler handler) {
    table_.Add(MakeMethod<Request>(StrCat("/reprise.v1.", name), streams,
                                   std::move(handler)));
  }

 private:
  static Status Refusal(const Services& services, const WorkerPool& full) {
    if (&full == &services.planners) {
      return ResourceExhausted(
          "too many plans are waiting; try again when some are done");
    }
    return Unavailable("the server is busy or shutting down");
  }

  Services& services_;
  MethodTable& table_;
};

Lane LaneOfSweep(const v1::SweepRequest&) { return Lane::kPatient; }

}  // namespace

void AddMethods(Services& services, MethodTable& table) {
  MethodAdder to(services, table);
  to.Add("Planner/GetGraph", &SendGraph);
  to.AddSearch("Planner/Plan", &MakePlan, &LaneOf,
               "the client left before planning began");
  to.AddSearch("Planner/Sweep", &SendCurve, &LaneOfSweep,
               "the client left before the sweep began");
  to.Add("Planner/FinishPlan", &FinishPlan);
  to.Add("Planner/GetPlan", &GetPlan);
  to.Add("Planner/Explain", &Explain, Lane::kPatient);
  to.Add("Planner/Verify", &Verify, Lane::kPatient);
  to.Add("Forward/PutPlan", &PutPlan);
  to.Add<v1::SetRunGraphRequest, v1::SetRunGraphResponse>("Forward/SetRunGraph",
                                                          &SetRunGraph);
  to.Add("Query/ListRuns", &ListRuns);
  to.Add("Query/GetRun", &GetRun);
  to.Start<v1::WatchRunRequest>(
      "Query/WatchRun", /*streams=*/true,
      [&services](std::shared_ptr<const v1::WatchRunRequest> request,
                  std::shared_ptr<Call> call) {
        if (request->buckets() > kMostStepBuckets) {
          call->Finish(
              InvalidArgument(StrCat("buckets: must be 0 to ", kMostStepBuckets,
                                     ", got ", request->buckets())));
          return;
        }
        services.watcher.Add(request->run_id(), request->buckets(),
                             std::move(call));
      });
  to.Add("Query/GetSteps", &GetSteps);
  to.Add("Query/GetTimeline", &GetTimeline, Lane::kPatient);
  to.Post<v1::ReadStepRequest>("Query/ReadStep", /*streams=*/true,
                               services.short_work, Lane::kPatient, &ReadStep);
  to.Add("Query/GetMemory", &GetMemory, Lane::kPatient);
  to.Add("Query/Compare", &CompareRuns, Lane::kPatient);
  to.Add("Query/GetMoments", &GetMoments, Lane::kPatient);
  to.Add("Query/GetStatus", &GetStatus);
  to.Add("Control/StartWindow", &StartWindow);
  to.Post<v1::ApplyBudgetRequest>("Control/ApplyBudget", /*streams=*/true,
                                  services.planners, Lane::kJob, &ApplyBudget);
  to.Add("Control/ReportEnd", &ReportEnd);
  to.Add("Admin/RemoveRuns", &RemoveRuns);
}

}  // namespace reprise::server
