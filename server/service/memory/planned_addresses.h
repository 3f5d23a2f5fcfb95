// SPDX-License-Identifier: Apache-2.0
//
// Where the storages of a plan would be in memory: a first-fit layout.
#pragma once

#include "base/status.h"
#include "reprise/v1/query.pb.h"
#include "server/service/memory/address_boxes.h"
#include "server/service/planning/stored_plan.h"

namespace reprise::server {

// Draws the part of the plan's step that `request` names. Fails if the plan has
// no schedule (NOT_FOUND) or too many lives of storages (RESOURCE_EXHAUSTED).
StatusOr<v1::Addresses> DrawPlannedAddresses(
    const StoredPlan& plan, const v1::GetAddressesRequest& request,
    AddressView view);

}  // namespace reprise::server
