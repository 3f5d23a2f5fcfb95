// SPDX-License-Identifier: Apache-2.0
//
// Plans as files: `reprise.plan/1` (docs/formats.md), what `reprise plan`
// writes and prints. Keys that do not apply are absent: a plan that is not
// feasible has no peak, time or overhead, and a feasible one no blocking_op.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "reprise/v1/plan.pb.h"

namespace reprise::formats {

// `graph` is the name written under "graph": the file or the id.
std::string WritePlanText(const v1::Plan& plan, std::string_view graph);

struct PlanText {
  v1::Plan plan;
  std::string graph;
};

// Text comes from a file and is not trusted. INVALID_ARGUMENT names the byte
// (not JSON) or the field. Decisions per storage and the timeline are not in
// the file; they follow from the graph and the schedule.
StatusOr<PlanText> ReadPlanText(std::string_view text);

}  // namespace reprise::formats
