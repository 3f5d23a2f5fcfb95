// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/handlers.h"
#include "server/store/run_rows.h"

namespace reprise::server {

StatusOr<v1::ServerStatus> GetStatus(Services& services,
                                     const v1::StatusRequest& /*request*/) {
  v1::ServerStatus status;
  status.set_store_bytes(services.store.SizeBytes());
  status.set_plan_queue(
      static_cast<uint32_t>(services.metrics.plans_waiting.load()));
  status.set_degraded(services.store.degraded());
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const int64_t runs, CountRuns(db));
    status.set_runs(static_cast<uint64_t>(runs));
    return OkStatus();
  }));
  if (services.fill_status) services.fill_status(status);
  return status;
}

}  // namespace reprise::server
