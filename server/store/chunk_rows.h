// SPDX-License-Identifier: Apache-2.0
//
// Rows of `chunks` and `lost`, and of the tables that are filled from a chunk
// in the same transaction: `steps`, `checks`, `plan_states`, and `moments`.
//
// The caller (server/ingest) has checked the chunk and calls InsertChunk once
// per seq, in order; these functions only read and write.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"
#include "server/core/caller.h"
#include "server/store/database.h"

namespace reprise::server {

// The sender of a chunk.
struct Producer {
  std::string session_id;
  std::string run_id;
  uint64_t epoch = 0;
  // Steps of a run are counted on rank 0 only, because every rank reports each
  // step.
  uint32_t rank = 0;
  // Who opened the stream.
  Caller caller = {};
  // The daemon of the job's machine sends it, and plans for the job.
  bool forwarded = false;
};

Status InsertChunk(Database& db, const Producer& producer,
                   const v1::Chunk& chunk, const v1::Columns& columns);

// Stores the reports of a chunk alone: its steps, checks, plan states and
// moments. Part of InsertChunk; by itself where the run's quota has no room for
// the records.
Status InsertReports(Database& db, const Producer& producer,
                     const v1::Columns& columns);

Status InsertLost(Database& db, const Producer& producer, const v1::Lost& lost);

// Reports of a run with row ids above `after`, in order of arrival.
struct StepRow {
  int64_t id = 0;
  std::string session_id;
  v1::StepReport report;
};
StatusOr<std::vector<StepRow>> LoadSteps(Database& db, std::string_view run_id,
                                         int64_t after);
struct CheckRow {
  int64_t id = 0;
  v1::VerifyReport report;
};
StatusOr<std::vector<CheckRow>> LoadChecks(Database& db,
                                           std::string_view run_id,
                                           int64_t after);

struct StateRow {
  int64_t id = 0;
  v1::PlanState report;
};
StatusOr<std::vector<StateRow>> LoadPlanStates(Database& db,
                                               std::string_view run_id,
                                               int64_t after);

// A check, in any run, that saw this plan change gradients.
struct FailedCheck {
  std::string run_id;
  uint64_t step = 0;
};
StatusOr<std::optional<FailedCheck>> FindFailedCheck(Database& db,
                                                     std::string_view plan_id);

// Returns the newest step of a run whose allocations were traced. NOT_FOUND.
StatusOr<StepRow> LoadWindowedStep(Database& db, std::string_view run_id,
                                   bool planned);

// Visits the chunks of a session that begin at or before `until_ns`, newest
// first, until `visit` returns false.
Status VisitChunksBackwards(
    Database& db, std::string_view session_id, int64_t until_ns,
    const std::function<StatusOr<bool>(int64_t t1_ns, std::string_view body)>&
        visit);

// Visits the same chunks from one on, oldest first.
struct ChunkPlace {
  int64_t epoch = 0;
  int64_t seq = 0;
};
Status VisitChunksForwards(
    Database& db, std::string_view session_id, ChunkPlace from,
    int64_t until_ns,
    const std::function<Status(int64_t t1_ns, std::string_view body)>& visit);

// Returns the places of the chunks that VisitChunksBackwards would visit.
struct ListedChunk {
  ChunkPlace place;
  int64_t t1_ns = 0;
  int64_t count = 0;  // records
};
StatusOr<std::vector<ListedChunk>> ListChunksBackwards(
    Database& db, std::string_view session_id, int64_t until_ns, int64_t most);

StatusOr<std::string> LoadChunkBody(Database& db, std::string_view session_id,
                                    ChunkPlace place);

// Returns the texts that a session's records refer to, at the positions of
// their ids; the first is empty.
StatusOr<std::vector<std::string>> LoadNames(Database& db,
                                             std::string_view session_id);

// Rows of `moments`: what a job was doing, and what it held in memory, when it
// was killed or ran out of memory.

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

// The cell of a row in a repeated field; 0 where the column ends before it.
template <typename List>
auto CellOf(const List& list, int row) -> std::decay_t<decltype(list.Get(0))> {
  return row < list.size() ? list.Get(row) : 0;
}

}  // namespace reprise::server
