// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/certify.h"
#include "server/convert/digest.h"
#include "server/convert/verify_proto.h"
#include "server/service/handlers.h"
#include "server/service/stored_plan.h"

namespace reprise::server {

StatusOr<v1::Verification> Verify(Services& services,
                                  const v1::VerifyRequest& request) {
  RETURN_IF_ERROR(ParseHexId(request.plan_id()).status());
  ASSIGN_OR_RETURN(const StoredPlan stored,
                   LoadStoredPlan(services.store, request.plan_id()));
  return VerifyPlan(
      stored.graph, stored.proto,
      planner::ExecutorOf(planner::WithExecution(stored.capabilities)));
}

}  // namespace reprise::server
