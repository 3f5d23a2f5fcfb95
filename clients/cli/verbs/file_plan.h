// SPDX-License-Identifier: Apache-2.0
//
// Plans of graph files: makes them in this process, and reads and checks plan
// files against their graph.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/options.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/plan_json.h"
#include "formats/convert/plan_proto.h"
#include "planner/planner.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::cli {

// The flags that `plan`, `sweep` and `explain` share: which executor will run
// the plan, and how long and how hard to search. Checked once, then passed to
// the planner in this process or to the server.

struct PlanningOptions {
  v1::Capabilities capabilities;
  std::chrono::milliseconds time_limit{0};
  // Set by the user: then all of it is used, unless the gap is reached.
  bool has_time_limit = false;
  double target_gap = 0;
  uint64_t seed = 1;
  int threads = 1;
  planner::Strategy strategy = planner::Strategy::kAuto;
  planner::Link link;  // of graph files only

  // Copies the options into a request; the capabilities are the task's, but for
  // the link.
  void Apply(planner::Request& request) const;
  void Apply(v1::PlanRequest& request) const;
  void Apply(v1::SweepRequest& request) const;
};

class PlanningFlags {
 public:
  explicit PlanningFlags(const char* time_limit) : time_limit_(time_limit) {}

  // Adds the flags to a verb; `sweep` has no strategy and no host memory.
  void Define(Verb& verb, bool with_strategy);

  // Checks the flags. INVALID_ARGUMENT names the flag. Unless the flag says
  // otherwise, a file is planned for `free` and a stored graph for `tape`.
  StatusOr<PlanningOptions> Check(bool is_file) const;

  const std::string& time_limit() const { return time_limit_; }

 private:
  std::string executor_;
  std::string time_limit_;
  const Verb* verb_ = nullptr;
  std::string gap_ = "0.1%";
  std::string strategy_ = "auto";
  std::string link_, host_budget_;
  uint64_t seed_ = 1;
  int threads_ = 1;
};

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

// Reads the text of a plan file; errors begin with its path.
StatusOr<formats::PlanText> ReadPlan(const std::string& path,
                                     std::string_view text);

// Returns the path of the graph that a plan names: as written, else next to the
// plan. NOT_FOUND if neither exists.
StatusOr<std::string> FindGraphOf(const std::string& plan_path,
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
