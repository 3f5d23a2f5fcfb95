// SPDX-License-Identifier: Apache-2.0
//
// Whether a schedule is valid, its peak and its time: the definition that every
// plan is held to. A loop can check a schedule before it runs it, without a
// server.
//
//   const Evaluation found = Evaluate(graph, answer.schedule);
//   if (!found.wrong.empty()) ...     // the entry that breaks a rule
//   found.peak_bytes                  // as the planner counts
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan.h"

namespace reprise {

struct Evaluation {
  // The first entry that breaks a rule, in one sentence; "" if the schedule is
  // valid. The other fields are only meant then.
  std::string wrong;
  int64_t peak_bytes = 0;
  // The first op that reaches the peak; -1: no op runs.
  int peak_op = -1;
  int64_t time_ns = 0;
  // Bytes alive while each op of the schedule runs, in its order.
  std::vector<int64_t> bytes_at;
};

// Walks a schedule for an executor that runs any ("free"). Every op must read
// each storage at the version that it had in base order: 1 once it is written,
// one more after each op that changes it in place.
Evaluation Evaluate(const Graph& graph, const std::vector<int>& schedule);

// Completes a list of ops to run with frees, each right after the last op that
// uses the storage before it is written again or the step ends.
std::vector<int> WithFrees(const Graph& graph, const std::vector<int>& ops);

}  // namespace reprise
