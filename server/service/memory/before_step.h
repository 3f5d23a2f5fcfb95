// SPDX-License-Identifier: Apache-2.0
//
// What was there before a recorded step. Its records say how much that is, and
// which of it is freed in the step; what it is, the captured step of the run
// says. So that a byte has one name wherever it is shown.
//
//   baseline = static memory          static_parts of the step graph
//            + found by the step      storages that its first op writes
//            + what neither names     unknown
#pragma once

#include "planner/model/step_graph.h"
#include "server/service/memory/recorded_step.h"

namespace reprise::server {

// Fills before_categories, by size, and before_parts.
void NameBefore(const planner::StepGraph& graph, RecordedStep& step);

}  // namespace reprise::server
