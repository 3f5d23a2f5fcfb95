// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/digest.h"
#include "server/service/calls/handlers.h"
#include "server/store/plan_rows.h"

namespace reprise::server {

StatusOr<v1::Plan> GetPlan(Services& services,
                           const v1::GetPlanRequest& request) {
  RETURN_IF_ERROR(formats::ParseHexId(request.plan_id()).status());
  v1::Plan plan;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(PlanRow row, LoadPlan(db, request.plan_id()));
    plan = std::move(row.plan);
    return OkStatus();
  }));
  return plan;
}

}  // namespace reprise::server
