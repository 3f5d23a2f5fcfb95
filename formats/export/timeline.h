// SPDX-License-Identifier: Apache-2.0
//
// One step for export: which ops ran when, what was allocated when, and the
// bytes alive in between. A predicted timeline comes from the evaluator's walk
// over a schedule, a measured one from the records of a traced step.
//
//   predicted: at every op, memory is what the evaluator says, to the byte;
//              addresses are made up, and none is used twice
//   measured:  as recorded; op slices if ops were traced
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "planner/model/evaluate.h"
#include "planner/model/step_graph.h"
#include "reprise/v1/query.pb.h"

namespace reprise::formats {

struct ExportOp {
  std::string name;
  std::string module;
  std::string phase;  // "forward", "kernel", ...
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  uint32_t track = 0;  // thread or stream; its slices nest
  int run = 0;         // 1 for the second run of an op of a plan
};

// An allocation (bytes > 0) or a free (bytes < 0), in order.
struct ExportEvent {
  int64_t time_ns = 0;
  uint64_t address = 0;
  int64_t bytes = 0;
  uint32_t what = 0;  // index into ExportTimeline.names
  uint32_t where = 0;
  uint32_t track = 0;  // as in ExportOp
};

struct ExportPoint {
  int64_t time_ns = 0;
  int64_t bytes = 0;
};

// Rows of a table of what is alive at a peak.
inline constexpr uint32_t kMostRows = 100;

struct ExportTimeline {
  std::string title;  // "predicted", "measured without a plan", ...
  int64_t duration_ns = 0;
  // Alive throughout, below everything else, and its categories as far as they
  // are known.
  int64_t static_bytes = 0;
  std::vector<planner::StaticPart> static_parts;
  // Of measured steps: what the server says is alive at the peak.
  std::optional<v1::LiveMemory> at_peak;
  std::vector<ExportOp> ops;
  std::vector<ExportEvent> events;
  // The bytes alive from each time on, including static memory.
  std::vector<ExportPoint> curve;
  std::vector<std::string> names;  // [0] is ""
  // Of predicted steps, of the names from `categories_from` on.
  std::vector<planner::Category> categories;
  size_t categories_from = 0;

  int64_t PeakBytes() const;
};

// Returns the timeline of a valid schedule. `reserve_bytes` is the plan's
// reserve; it counts as static.
StatusOr<ExportTimeline> PredictedTimeline(
    std::string title, const planner::StepGraph& graph,
    const planner::Schedule& schedule,
    const planner::Capabilities& capabilities, int64_t reserve_bytes);

// Builds a timeline from the parts of ReadStep, in order.
class MeasuredTimeline {
 public:
  explicit MeasuredTimeline(std::string title);
  void Add(const v1::StepPart& part);
  ExportTimeline Finish();

 private:
  uint32_t Name(const std::string& text);

  ExportTimeline timeline_;
  int64_t begin_ns_ = 0;
  int64_t live_ = 0;
  std::unordered_map<uint32_t, uint32_t> names_;        // of the session
  std::unordered_map<std::string, uint32_t> name_ids_;  // of the timeline
  std::unordered_map<uint64_t, size_t> open_ops_;       // op id to slice
  std::unordered_map<uint64_t, uint32_t> op_names_;
};

// Timelines as Chrome trace JSON, which chrome://tracing and Perfetto open: one
// process per timeline, its ops as slices, its memory as a counter. Times are
// microseconds since the step's begin, because absolute nanoseconds would not
// fit into a double.
//
// Steps, ops and allocations also have the names that torch.profiler uses
// ("ProfilerStep#1", "cpu_op", "[memory]"), with the memory of timeline i as
// that of device i, so that `reprise import` and tools for torch.profiler's
// traces can read them. If neither "cpu_op" nor "kernel" says what an op is,
// "Part" does (forward, ...).

std::string WriteChromeTrace(const std::string& name,
                             const std::vector<ExportTimeline>& timelines);

// Timelines as one HTML file to send to somebody: what the plan says, memory
// over each step as a drawing, and what is alive at its peak. It has no script,
// loads nothing, and follows the reader's light or dark setting.
//
// It is as large as a screen, not as the step: a drawing has 1,000 columns, each
// as high as the largest value in it, and a table at most 100 rows; what is
// left out stands below it with its bytes. Of the program it holds names of ops,
// modules and source lines, no source.
struct ReportFacts {
  std::string name = {};
  std::string sentence = {};  // empty: there is none
  int64_t budget_bytes = 0;   // 0: there is none
};

std::string WriteHtmlReport(const ReportFacts& facts,
                            const std::vector<ExportTimeline>& timelines);

}  // namespace reprise::formats
