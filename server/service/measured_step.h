// SPDX-License-Identifier: Apache-2.0
//
// Bytes alive during one traced step, computed from its allocation records.
//
//   BASELINE b ... ALLOC +n ... FREE -n ...      live = b + running sum
//
// The step begins at its STEP mark and ends at its report. The baseline may be
// some steps earlier: there is one per window.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/service/timeline_fold.h"
#include "server/store/sqlite.h"

namespace reprise::server {

struct MeasuredStep {
  uint64_t step = 0;
  int64_t step_ns = 0;
  bool incomplete = false;
  std::vector<BytesAt> points;  // ns since the start of the step
  // The session of the records, and their CLOCK_MONOTONIC range.
  std::string session_id;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// Returns the newest traced step of the run, with or without a plan. NOT_FOUND:
// no step was traced, or the baseline is missing.
StatusOr<MeasuredStep> LoadMeasuredStep(Database& db, const std::string& run_id,
                                        bool planned);

}  // namespace reprise::server
