// SPDX-License-Identifier: Apache-2.0
//
// Plans of graph files: makes them in this process, and reads and checks plan
// files against their graph.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "clients/cli/core/console.h"
#include "clients/cli/verbs/peak_report.h"
#include "clients/cli/verbs/planning_flags.h"
#include "formats/convert/plan_proto.h"
#include "planner/planner.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

// A plan with the task it answers.
struct FilePlan {
  formats::Task task;
  planner::Plan plan;
  v1::Plan proto;
};

// Plans a graph file and shows progress. On Ctrl-C and at the time limit it
// returns the best plan so far. `wrong_usage` is set if the budget is the
// error. CANCELLED: interrupted before there was a plan.
StatusOr<FilePlan> PlanGraphFile(Console& console, const std::string& path,
                                 const std::string& budget,
                                 const PlanningOptions& options,
                                 bool& wrong_usage);

// Returns the path of the graph that a plan names: as written, else next to the
// plan; nothing if neither exists.
std::optional<std::string> FindGraphOf(const std::string& plan_path,
                                       const std::string& graph);

// A plan file whose schedule was evaluated on its graph.
struct CheckedPlan {
  planner::StepGraph graph;
  planner::Capabilities capabilities;
  planner::Schedule schedule;
  PeakReport report;
};

// Returns what the executor of a plan file can do. The schedule shows what else
// was allowed when the plan was made.
StatusOr<planner::Capabilities> CapabilitiesOf(const v1::Plan& plan);

// INVALID_ARGUMENT, FAILED_PRECONDITION: the plan does not belong to this
// graph, is invalid, or keeps more memory than it says. The plan must be
// feasible.
StatusOr<CheckedPlan> CheckPlanFile(const std::string& path,
                                    const v1::Plan& plan,
                                    const std::string& graph_path);

// Explain why the plan is as it is.
v1::Explanation ExplainFilePlan(const FilePlan& plan);
v1::Explanation ExplainCheckedPlan(const CheckedPlan& checked,
                                   const v1::Plan& plan);

}  // namespace reprise::cli
