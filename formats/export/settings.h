// SPDX-License-Identifier: Apache-2.0
//
// The nearest setting of another tool's own switches to a plan, for those who
// cannot run it: which layers to checkpoint, what to save in them. Each setting
// is run as its tool would (planner/construct/checkpointed.h) and judged by the
// evaluator, so that what it costs beside the plan is known before it is tried.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "planner/model/evaluate.h"
#include "planner/model/step_graph.h"

namespace reprise::formats {

// What --for takes, by name.
std::vector<std::string> SettingTools();

struct Setting {
  std::string what;  // "checkpoints 5 of 12 layers"
  std::string text;  // to copy: flags, or lines of Python
  int64_t peak_bytes = 0;
  int64_t time_ns = 0;
  bool fits = false;  // false: the one with the smallest peak
};

// Returns the cheapest setting of a tool whose peak is at most `budget_bytes`.
// `capabilities`: of the plan; how often ops run, and which, the tool decides.
// INVALID_ARGUMENT: there is no such tool. FAILED_PRECONDITION: the step has
// nothing that the tool could checkpoint. O(settings * execs).
StatusOr<Setting> NearestSetting(std::string_view tool,
                                 const planner::StepGraph& graph,
                                 const planner::Capabilities& capabilities,
                                 int64_t budget_bytes);

}  // namespace reprise::formats
