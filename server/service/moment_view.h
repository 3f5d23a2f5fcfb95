// SPDX-License-Identifier: Apache-2.0
//
// The last ops before a moment, and the memory at it. Two sources, the better
// one first:
//
//   records   the step was traced: its op and allocation records, which came
//             through the ring up to the end. Exact; modules are not in them
//   graph     the captured step, walked along the plan's schedule (without a
//             plan, in base order) to the op that the job had named last. Where
//             it named none, to the fullest point of the phase it was in
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "planner/model/evaluate.h"
#include "reprise/v1/query.pb.h"
#include "server/store/moment_rows.h"
#include "server/store/sqlite.h"

namespace reprise::server {

struct MomentView {
  std::vector<v1::LastOp> ops;  // oldest first
  // What was alive, unless `has_memory` is false: then nobody recorded it.
  bool has_memory = false;
  std::vector<v1::HeldStorage> storages;  // in no order
  int64_t live_bytes = 0;
  bool traced = false;    // of records: the step was
  bool guessed = false;   // of a graph: the job had not named its op
  bool finished = false;  // of a graph: the step had ended
};

// From the records of the session's step. `traced` is false where it was not.
StatusOr<MomentView> ViewFromRecords(Database& db, const MomentRow& row,
                                     size_t most_ops);

// From a graph and a valid schedule of it. O(schedule). `finished`: the step
// had ended, the next one had not begun.
MomentView ViewFromGraph(const planner::StepGraph& graph,
                         std::span<const planner::Entry> schedule,
                         const v1::Moment& moment, bool finished,
                         size_t most_ops);

}  // namespace reprise::server
