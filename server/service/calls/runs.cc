// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "base/str_cat.h"
#include "server/service/calls/handlers.h"
#include "server/service/runs/verdict.h"
#include "server/store/run_rows.h"
#include "server/store/window_rows.h"

namespace reprise::server {
namespace {

constexpr size_t kMostSearchBytes = 256;
constexpr uint32_t kDefaultBuckets = 500;
constexpr uint32_t kMostBuckets = 4096;

void AddQuota(const Services& services, v1::Run& run) {
  run.mutable_stored()->set_quota_bytes(services.quota.max_bytes());
}

}  // namespace

StatusOr<v1::ListRunsResponse> ListRuns(Services& services,
                                        const v1::ListRunsRequest& request) {
  if (request.search().size() > kMostSearchBytes) {
    return InvalidArgument(StrCat("search: at most ", kMostSearchBytes,
                                  " bytes, got ", request.search().size()));
  }
  ASSIGN_OR_RETURN(v1::ListRunsResponse response,
                   services.runs.Read(services.store, services.hub, request));
  for (v1::Run& run : *response.mutable_runs()) AddQuota(services, run);
  return response;
}

StatusOr<v1::Run> GetRun(Services& services, const v1::GetRunRequest& request) {
  return services.store.Get([&](Database& db) -> StatusOr<v1::Run> {
    ASSIGN_OR_RETURN(v1::Run run, LoadNamedRun(db, request.run_id()));
    RETURN_IF_ERROR(AddVerdict(db, run));
    AddQuota(services, run);
    RETURN_IF_ERROR(AddSessionsAndWindow(db, run));
    return run;
  });
}

StatusOr<v1::StepBuckets> GetSteps(Services& services,
                                   const v1::GetStepsRequest& request) {
  if (request.buckets() > kMostBuckets) {
    return InvalidArgument(StrCat("buckets: must be 0 to ", kMostBuckets,
                                  ", got ", request.buckets()));
  }
  if (request.to_step() != 0 && request.to_step() < request.from_step()) {
    return InvalidArgument(StrCat("to_step: must not be before from_step ",
                                  request.from_step(), ", got ",
                                  request.to_step()));
  }
  v1::StepBuckets made;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const std::string run_id,
                     ResolveRunId(db, request.run_id()));
    return services.followers.With(
        db, run_id, services.hub.VersionOf(run_id),
        [&](const FollowedRun& followed) -> Status {
          made = followed.reports.log().Fold(
              request.from_step(),
              request.to_step() == 0 ? std::numeric_limits<uint64_t>::max()
                                     : request.to_step(),
              request.buckets() == 0 ? kDefaultBuckets : request.buckets());
          return OkStatus();
        });
  }));
  return made;
}

StatusOr<v1::ReportEndResponse> ReportEnd(Services& services,
                                          const v1::ReportEndRequest& request) {
  const v1::ProcessEnd& end = request.end();
  if (!request.has_end() || end.exit_code() < 0 || end.exit_code() > 255 ||
      end.signal() < 0 || end.signal() > 127) {
    return InvalidArgument(
        StrCat("end: an exit code of 0 to 255 and a signal of 0 to 127, got ",
               end.exit_code(), " and ", end.signal()));
  }
  std::string run_id;
  RETURN_IF_ERROR(services.store.Write([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(run_id, ResolveRunId(db, request.run_id()));
    return SetRunEnd(db, run_id, end);
  }));
  services.hub.Notify(run_id);
  return v1::ReportEndResponse();
}

StatusOr<v1::ServerStatus> GetStatus(Services& services,
                                     const v1::StatusRequest& request) {
  v1::ServerStatus status;
  if (request.brief()) {
    v1::ServerStatus all;
    services.fill_status(all);
    status.set_version(all.version());
    status.set_revision(all.revision());
    status.set_started_ns(all.started_ns());
    status.set_now_ns(all.now_ns());
    status.set_ring_layout(all.ring_layout());
    status.set_proto_version(all.proto_version());
    // The reason may contain folder names.
    const bool well =
        services.store.degraded().empty() && all.degraded().empty();
    status.set_degraded(well ? "" : "the server has trouble; ask its admin");
    return status;
  }
  status.set_store_bytes(services.store.SizeBytes());
  status.set_plan_queue(
      static_cast<uint32_t>(services.metrics.plans_waiting.Value()));
  status.set_degraded(services.store.degraded());
  ASSIGN_OR_RETURN(const int64_t runs, services.store.Get(CountRuns));
  status.set_runs(static_cast<uint64_t>(runs));
  services.fill_status(status);
  return status;
}

}  // namespace reprise::server
