// SPDX-License-Identifier: Apache-2.0
//
// The search options that PlanRequest and SweepRequest share: checks them and
// passes them to the planner.
#pragma once

#include "base/status.h"
#include "planner/planner.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::formats {

// Copies the options. INVALID_ARGUMENT names the field.
Status ApplySearchOptions(const v1::PlanRequest& from, planner::Request& to);
Status ApplySearchOptions(const v1::SweepRequest& from, planner::Request& to);

v1::Strategy ToProto(planner::Strategy strategy);

}  // namespace reprise::formats
