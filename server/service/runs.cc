// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "server/service/handlers.h"
#include "server/service/verdict.h"
#include "server/store/run_rows.h"
#include "server/store/window_rows.h"

namespace reprise::server {

namespace {
constexpr uint32_t kDefaultRuns = 100;
constexpr uint32_t kMaxRuns = 1000;

void AddQuota(const Services& services, v1::Run& run) {
  run.mutable_stored()->set_quota_bytes(services.quota.max_bytes());
}
}  // namespace

StatusOr<v1::ListRunsResponse> ListRuns(Services& services,
                                        const v1::ListRunsRequest& request) {
  const uint32_t limit =
      request.limit() == 0 ? kDefaultRuns : std::min(request.limit(), kMaxRuns);
  v1::ListRunsResponse response;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const std::vector<v1::Run> runs, LoadRuns(db, limit));
    for (const v1::Run& run : runs) {
      ASSIGN_OR_RETURN(*response.add_runs(),
                       LoadRunWithVerdict(db, run.run_id()));
      AddQuota(services, *response.mutable_runs()->rbegin());
    }
    return OkStatus();
  }));
  return response;
}

StatusOr<v1::Run> GetRun(Services& services, const v1::GetRunRequest& request) {
  v1::Run run;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const std::string run_id,
                     ResolveRunId(db, request.run_id()));
    ASSIGN_OR_RETURN(run, LoadRunWithVerdict(db, run_id));
    AddQuota(services, run);
    return AddSessionsAndWindow(db, run);
  }));
  return run;
}

}  // namespace reprise::server
