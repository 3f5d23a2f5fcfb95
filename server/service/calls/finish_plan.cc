// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/handlers.h"

namespace reprise::server {

StatusOr<v1::FinishPlanResponse> FinishPlan(
    Services& services, const v1::FinishPlanRequest& request) {
  RETURN_IF_ERROR(services.planning.calls().Finish(request.request_id()));
  return v1::FinishPlanResponse();
}

}  // namespace reprise::server
