// SPDX-License-Identifier: Apache-2.0
#include "server/service/measured_step.h"

#include <algorithm>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"
#include "reprise/v1/ingest.pb.h"
#include "server/store/chunk_rows.h"

namespace reprise::server {

namespace {

// How far back to search for a baseline: 4 million records.
constexpr int kMaxChunks = 1024;

struct Event {
  int64_t time_ns = 0;
  int64_t bytes = 0;
  bool baseline = false;
};

// What was found in the chunks around a step.
struct Found {
  std::vector<std::vector<Event>> chunks;  // newest first
  int64_t mark_ns = -1;                    // of the STEP record
  int64_t baseline_ns = -1;  // of the newest baseline before the step
};

void ReadChunk(const v1::Columns& columns, uint64_t step, int64_t begin_ns,
               Found& found) {
  std::vector<Event>& events = found.chunks.emplace_back();
  const int count = std::min(columns.kind_size(), columns.start_ns_size());
  for (int i = 0; i < count; ++i) {
    const auto time_ns = static_cast<int64_t>(columns.start_ns(i));
    // A column of zeros is stored as empty, for example if all records are
    // ALLOC.
    const uint64_t extra = i < columns.extra_size() ? columns.extra(i) : 0;
    if (columns.kind(i) == v1::RECORD_KIND_STEP) {
      if (extra == step) found.mark_ns = std::max(found.mark_ns, time_ns);
      continue;
    }
    if (columns.kind(i) != v1::RECORD_KIND_ALLOC || i >= columns.bytes_size() ||
        (extra != REPRISE_ALLOC && extra != REPRISE_FREE &&
         extra != REPRISE_BASELINE)) {
      continue;
    }
    const bool baseline = extra == REPRISE_BASELINE;
    if (baseline && time_ns <= begin_ns) {
      found.baseline_ns = std::max(found.baseline_ns, time_ns);
    }
    events.push_back({time_ns, columns.bytes(i), baseline});
  }
}

StatusOr<Found> ReadAround(Database& db, const StepRow& row) {
  const int64_t begin_ns = row.report.end_ns() - row.report.step_ns();
  Found found;
  int visited = 0;
  RETURN_IF_ERROR(VisitChunksBackwards(
      db, row.session_id, row.report.end_ns(),
      [&](int64_t t1_ns, std::string_view body) -> StatusOr<bool> {
        v1::Columns columns;
        if (!columns.ParseFromArray(body.data(),
                                    static_cast<int>(body.size()))) {
          return Status(Code::kDataLoss, "a stored chunk is damaged");
        }
        ReadChunk(columns, row.report.step(), begin_ns, found);
        const bool whole = t1_ns < begin_ns && found.baseline_ns >= 0;
        return !whole && ++visited < kMaxChunks;
      }));
  return found;
}

}  // namespace

StatusOr<MeasuredStep> LoadMeasuredStep(Database& db, const std::string& run_id,
                                        bool planned) {
  ASSIGN_OR_RETURN(const StepRow row, LoadWindowedStep(db, run_id, planned));
  ASSIGN_OR_RETURN(Found found, ReadAround(db, row));
  const int64_t end_ns = row.report.end_ns();
  const int64_t begin_ns = found.mark_ns >= 0 && found.mark_ns <= end_ns
                               ? found.mark_ns
                               : end_ns - row.report.step_ns();
  std::vector<Event> events;
  for (auto chunk = found.chunks.rbegin(); chunk != found.chunks.rend();
       ++chunk) {
    events.insert(events.end(), chunk->begin(), chunk->end());
  }
  std::stable_sort(
      events.begin(), events.end(),
      [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });

  MeasuredStep measured{.step = row.report.step(),
                        .step_ns = std::max<int64_t>(end_ns - begin_ns, 0),
                        .incomplete = row.report.incomplete(),
                        .points = {},
                        .session_id = row.session_id,
                        .begin_ns = begin_ns,
                        .end_ns = end_ns};
  bool known = false;
  int64_t live = 0;
  for (const Event& event : events) {
    if (event.time_ns > end_ns) break;
    if (!event.baseline && !known) continue;
    if (event.time_ns > begin_ns && measured.points.empty()) {
      measured.points.push_back({0, known ? live : event.bytes});
    }
    live = event.baseline ? event.bytes : live + event.bytes;
    known = true;
    if (event.time_ns > begin_ns) {
      measured.points.push_back({event.time_ns - begin_ns, live});
    }
  }
  if (!known) {
    return NotFound(StrCat("step ", measured.step, " of run ", run_id,
                           ": its baseline was not recorded"));
  }
  if (measured.points.empty()) measured.points.push_back({0, live});
  return measured;
}

}  // namespace reprise::server
