// SPDX-License-Identifier: Apache-2.0
//
// What differs between two runs or plans: bytes alive at either peak by
// category, module and source line, and the ops that run again. The command and
// the page show what is computed here.
//
//   plan, graph ─▶ SideOfSchedule ─┐
//   records     ─▶ PeakSide        ┴▶ Compare ─▶ v1::Comparison
//
// A side is a list of parts that add up to its peak. The same category, module
// and source line of both sides are one row. O(parts log parts).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "planner/model/evaluate.h"
#include "reprise/v1/graph.pb.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/query.pb.h"

namespace reprise::formats {

struct PeakPart {
  v1::Category category = v1::CATEGORY_UNKNOWN;
  std::string module = {};
  std::string source = {};
  int64_t bytes = 0;
  uint64_t count = 0;
};

// An op that runs more than once.
struct AgainOp {
  std::string name = {};
  std::string module = {};
  std::string source = {};
  uint32_t again = 0;  // beyond its first run
  int64_t ns = 0;
};

struct PeakSide {
  v1::ComparedSide facts;
  std::vector<PeakPart> parts;
  std::vector<AgainOp> again;
};

// Returns what a plan, stored or read, has alive at its peak: its schedule, or of
// an impossible one the step without a plan. Static memory, `reserve_bytes` and
// workspace are parts of their own. `proto` is the graph's proto, for its source
// lines. Fills in the facts but for the name.
StatusOr<PeakSide> SideOfPlan(const v1::StepGraph& proto,
                              const planner::StepGraph& graph,
                              const v1::Plan& plan,
                              const planner::Schedule& schedule,
                              const planner::Capabilities& capabilities,
                              int64_t reserve_bytes);

// The same of a captured step as it runs without a plan. What its measured peak
// has beyond the graph's is a part of its own.
StatusOr<PeakSide> SideOfGraph(const v1::StepGraph& proto,
                               const std::string& graph_id);

v1::Comparison Compare(const PeakSide& a, const PeakSide& b);

}  // namespace reprise::formats
