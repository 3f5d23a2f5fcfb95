// SPDX-License-Identifier: Apache-2.0
//
// Rows of `moments`: what a job was doing, and what it held in memory, when it
// was killed or ran out of memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"
#include "server/store/chunk_rows.h"
#include "server/store/database.h"

namespace reprise::server {

// Inserts the moments of a chunk, in its transaction.
Status InsertMoments(Database& db, const Producer& producer,
                     const v1::Columns& columns);

struct MomentRow {
  std::string session_id;
  uint32_t rank = 0;
  // CLOCK_REALTIME - CLOCK_MONOTONIC at the session's start.
  int64_t monotonic_to_unix_ns = 0;
  v1::Moment moment;
};
// Returns the newest moments of a run, newest first.
StatusOr<std::vector<MomentRow>> LoadMoments(Database& db,
                                             std::string_view run_id,
                                             int64_t limit);

}  // namespace reprise::server
