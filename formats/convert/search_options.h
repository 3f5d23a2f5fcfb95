// SPDX-License-Identifier: Apache-2.0
//
// How hard and in which way to search: the fields that PlanRequest and
// SweepRequest share, checked and handed to the planner.
#pragma once

#include "base/status.h"
#include "planner/planner.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::formats {

// INVALID_ARGUMENT names the field.
Status ApplySearchOptions(const v1::PlanRequest& from, planner::Request& to);
Status ApplySearchOptions(const v1::SweepRequest& from, planner::Request& to);

v1::Strategy ToProto(planner::Strategy strategy);

}  // namespace reprise::formats
