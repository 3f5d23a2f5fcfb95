// SPDX-License-Identifier: Apache-2.0
//
// Turns a request about a stored graph into the planner's request, and the
// planner's answer into the Plan that is stored, sent to the job and shown.
//
//   MakeTask    budget text -> bytes; subtracts what the model cannot see
//   ToProto     planner::Plan -> v1::Plan with names, timeline, sentence, id
//   ToSchedule  v1::Plan (not trusted) -> schedule, for the evaluator
//
// Memory that is real but not in the graph (allocator rounding, a framework's
// own buffers) is the *reserve*: the job's measured peak minus the evaluator's
// peak of the same program, never negative, plus what later measurements add.
// The planner gets budget - reserve; every figure shown to people includes the
// reserve.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "planner/planner.h"
#include "reprise/v1/graph.pb.h"
#include "reprise/v1/plan.pb.h"
#include "reprise/v1/planner.pb.h"

namespace reprise::formats {

// A request for the planner, and the labels that its answer needs.
struct Task {
  planner::StepGraph graph;
  planner::Request request;  // budget_bytes: budget less reserve

  std::string graph_id;  // 16 hex digits
  std::string structure;
  std::string inferred;  // why the graph is not the step itself; or empty
  std::string budget;    // as the user wrote it
  int64_t budget_bytes = 0;
  int64_t reserve_bytes = 0;
  v1::Capabilities capabilities;
  // Peak without a plan: as measured by the job, else by the evaluator.
  int64_t base_peak_bytes = 0;
  int64_t measured_step_ns = 0;  // 0: not measured
  uint32_t replan = 0;
  bool waits = false;  // the first step of a job does, for any good plan
};

// Builds the task. `extra_reserve` is added to the measured difference; a
// share, as "0.5x", counts it as static memory.
//
// INVALID_ARGUMENT: the graph or the capabilities are invalid, or the budget
// cannot be parsed, is not positive, or needs an unknown device.
StatusOr<Task> MakeTask(const v1::StepGraph& graph, std::string graph_id,
                        const std::string& budget,
                        const v1::Capabilities& capabilities,
                        int64_t extra_reserve = 0, int64_t device_bytes = 0,
                        int64_t device_free_bytes = 0);

// Builds the complete answer: decisions, schedule, predicted timeline,
// sentence, id. `plan` must be the planner's answer to `task`.
v1::Plan ToProto(const Task& task, const planner::Plan& plan, double solve_ms);

// Returns the digest of graph, budget, schedule and capabilities: equal plans
// have equal ids, wherever and whenever they are made.
std::string PlanId(const v1::Plan& plan, const v1::Capabilities& capabilities);

// INVALID_ARGUMENT: an entry names no op or storage of `graph`. Does not check
// that the schedule is valid; the evaluator does.
StatusOr<planner::Schedule> ToSchedule(const v1::Plan& plan,
                                       const planner::StepGraph& graph);

// The search options that PlanRequest and SweepRequest share: checks them and
// passes them to the planner.

// Copies the options. INVALID_ARGUMENT names the field.
Status ApplySearchOptions(const v1::PlanRequest& from, planner::Request& to);
Status ApplySearchOptions(const v1::SweepRequest& from, planner::Request& to);

v1::Strategy ToProto(planner::Strategy strategy);

}  // namespace reprise::formats
