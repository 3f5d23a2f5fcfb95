// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/digest.h"
#include "formats/convert/verify_proto.h"
#include "planner/bounds/certify.h"
#include "server/service/calls/handlers.h"
#include "server/service/planning/stored_plan.h"

namespace reprise::server {

StatusOr<v1::Verification> Verify(Services& services,
                                  const v1::VerifyRequest& request) {
  RETURN_IF_ERROR(formats::ParseHexId(request.plan_id()).status());
  ASSIGN_OR_RETURN(const StoredPlan stored,
                   LoadStoredPlan(services.store, request.plan_id()));
  return formats::VerifyPlan(
      stored.graph, stored.proto,
      planner::ExecutorOf(planner::WithExecution(stored.capabilities)));
}

}  // namespace reprise::server
