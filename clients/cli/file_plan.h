// SPDX-License-Identifier: Apache-2.0
//
// Plans of graphs in files: made here, in this process, and read back and
// checked against their graph.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "clients/cli/console.h"
#include "clients/cli/peak_report.h"
#include "clients/cli/planning_flags.h"
#include "formats/convert/plan_proto.h"
#include "planner/planner.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

// A plan with all that made it.
struct FilePlan {
  formats::Task task;
  planner::Plan plan;
  v1::Plan proto;
};

// Shows progress; ends on Ctrl-C and at the time limit with the best plan so
// far. `wrong_usage` is set where the budget is what is refused. CANCELLED:
// interrupted before there was a plan.
StatusOr<FilePlan> PlanGraphFile(Console& console, const std::string& path,
                                 const std::string& budget,
                                 const PlanningOptions& options,
                                 bool& wrong_usage);

// The graph named in a plan: as written, else beside the plan.
std::optional<std::string> FindGraphOf(const std::string& plan_path,
                                       const std::string& graph);

// A plan file that the evaluator walked on its graph.
struct CheckedPlan {
  planner::StepGraph graph;
  planner::Capabilities capabilities;
  planner::Schedule schedule;
  PeakReport report;
};

// INVALID_ARGUMENT, FAILED_PRECONDITION: the plan is not of this graph, not
// valid, or keeps more memory than it says. The plan must be feasible.
StatusOr<CheckedPlan> CheckPlanFile(const std::string& path,
                                    const v1::Plan& plan,
                                    const std::string& graph_path);

// Why the plan is as it is.
v1::Explanation ExplainFilePlan(const FilePlan& plan);
v1::Explanation ExplainCheckedPlan(const CheckedPlan& checked,
                                   const v1::Plan& plan);

}  // namespace reprise::cli
