// SPDX-License-Identifier: Apache-2.0
//
// The quota of a run: what is stored of it, in columns of `runs`. All functions
// run inside a Store::Write or Store::Read.
//
//   0 ──────────── 7/8 of the quota ──────── quota
//   everything is    only reports of steps,    nothing is stored,
//   stored           checks, plans, and        all is counted
//                    step graphs
//
// A job that records too much thus keeps its verdict and its re-plans.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"
#include "server/store/chunk_rows.h"
#include "server/store/database.h"

namespace reprise::server {

class Quota {
 public:
  // 0: no limit.
  explicit Quota(int64_t max_bytes) : max_bytes_(max_bytes) {}

  int64_t max_bytes() const { return max_bytes_; }

  // Returns whether so many more bytes of records or names fit.
  bool HasRoomForRecords(int64_t stored_bytes, int64_t more) const {
    return max_bytes_ <= 0 || stored_bytes + more <= max_bytes_ / 8 * 7;
  }
  // Returns whether so many more bytes of reports or graphs fit.
  bool HasRoomForReports(int64_t stored_bytes, int64_t more) const {
    return max_bytes_ <= 0 || stored_bytes + more <= max_bytes_;
  }

 private:
  const int64_t max_bytes_;
};

struct StoredRow {
  int64_t bytes = 0;
  uint64_t refused_records = 0;
  int64_t refused_bytes = 0;
};
// All 0 if there is no such run.
StatusOr<StoredRow> LoadStored(Database& db, std::string_view run_id);

Status AddStored(Database& db, std::string_view run_id, int64_t bytes);
// Counts `bytes` of a step graph or a plan (`what`) as stored.
// RESOURCE_EXHAUSTED: the run's quota has no room for them.
Status TakeRoom(Database& db, const Quota& quota, std::string_view run_id,
                std::string_view what, int64_t bytes);
Status AddRefused(Database& db, std::string_view run_id, uint64_t records,
                  int64_t bytes);

// Bytes of the reports in a chunk, which are stored once more as rows.
int64_t ReportBytes(const v1::Columns& columns);

// Counts a chunk as lost to the quota. Neighbours share a row, so that a flood
// of refused chunks does not fill the store either.
Status InsertRefused(Database& db, const Producer& producer, uint64_t seq);

// The reason in `lost`.
inline constexpr std::string_view kQuotaReason = "quota";

}  // namespace reprise::server
