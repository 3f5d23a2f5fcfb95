// SPDX-License-Identifier: Apache-2.0
//
// The last ops before a moment, and the memory at that time. There are two
// sources; the first is preferred:
//
//   records   the step was traced: its op and allocation records, which came
//             through the ring until the end. Exact, but without modules
//   graph     the captured step, followed along the plan's schedule (without a
//             plan, in base order) to the last op that the job reported. If it
//             reported none, to the point of highest memory in its phase
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "planner/model/evaluate.h"
#include "reprise/v1/query.pb.h"
#include "server/store/chunk_rows.h"
#include "server/store/database.h"

namespace reprise::server {

struct MomentView {
  std::vector<v1::LastOp> ops;  // oldest first
  // What was alive. If `has_memory` is false, that was not recorded.
  bool has_memory = false;
  std::vector<v1::HeldStorage> storages;  // in no order
  int64_t live_bytes = 0;
  bool traced = false;    // from records: the step was traced
  bool guessed = false;   // from a graph: no op was reported
  bool finished = false;  // from a graph: the step had ended
};

// Uses the records of the session's step; false if the step was not traced.
StatusOr<MomentView> ViewFromRecords(Database& db, const MomentRow& row,
                                     size_t most_ops);

// Uses a graph and a valid schedule of it. O(schedule). `finished`: the step
// had ended, and the next one had not begun.
MomentView ViewFromGraph(const planner::StepGraph& graph,
                         std::span<const planner::Entry> schedule,
                         const v1::Moment& moment, bool finished,
                         size_t most_ops);

}  // namespace reprise::server
