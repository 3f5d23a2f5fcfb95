// SPDX-License-Identifier: Apache-2.0
//
// One traced step, computed from its records and indexed: how much is alive
// when, and who.
//
//   BASELINE b ... ALLOC +n ... FREE -n ...      live = b + running sum
//
// The step begins at its STEP mark and ends at its report. The baseline may be
// some steps earlier: there is one per window. What was alive before the
// baseline is known as far as the records say: by its free, or as a block of a
// segment that nobody freed.
//
// Memory: about 16 bytes an event and 32 bytes an allocation; while it is made,
// 32 bytes more an event. Of a step at most 12 million events are indexed.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"
#include "planner/model/step_graph.h"
#include "server/service/memory/memory_curve.h"
#include "server/store/chunk_rows.h"
#include "server/store/database.h"

namespace reprise::server {

// From one event of the curve to another: alive from `born` on, until `died`.
struct Allocation {
  static constexpr uint32_t kBefore = std::numeric_limits<uint32_t>::max();
  static constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

  uint64_t address = 0;
  uint32_t born = kBefore;
  uint32_t died = kNever;
  uint32_t name = 0;  // in RecordedStep.texts
  uint32_t stack = 0;
  uint32_t use = 0;  // earlier allocations at the address
  // Of the step while it was made; unspecified: not known.
  v1::Phase phase = v1::PHASE_UNSPECIFIED;
};

// Allocations in order of birth, with a tree of the latest death in each
// stretch, so that those alive at an event are found without a look at all:
// O(alive + log allocations).
class Lifetimes {
 public:
  // Allocations that were there before come first.
  void Build(std::vector<Allocation> allocations);

  // Calls `visit(index)` for each that is alive after `event`.
  void VisitAlive(uint32_t event,
                  const std::function<void(size_t index)>& visit) const;

  const std::vector<Allocation>& all() const { return all_; }
  size_t MemoryBytes() const;

 private:
  void Visit(size_t level, size_t node, size_t born_until, uint32_t event,
             const std::function<void(size_t)>& visit) const;

  std::vector<Allocation> all_;
  std::vector<std::vector<uint32_t>> latest_;  // by level, 16 to a node
};

struct RecordedStep {
  uint64_t step = 0;
  int64_t step_ns = 0;
  bool incomplete = false;
  // The session of the records, and their CLOCK_MONOTONIC range.
  std::string session_id;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;

  // Times are ns since the step's begin; events of earlier steps of the window
  // are negative.
  MemoryCurve curve;
  size_t first = 0;  // the state at the step's begin, an event of the curve
  Lifetimes lifetimes;
  // Bytes of allocations that were there before, at the same positions; and what
  // the captured step says they are, unspecified: nothing.
  std::vector<int64_t> before_bytes;
  std::vector<v1::Category> before_categories;
  // What else was there before, as the captured step says.
  std::vector<planner::StaticPart> before_parts;
  std::vector<std::string> texts;

  int64_t BytesOf(size_t allocation) const;
  v1::Category CategoryBefore(size_t allocation) const {
    return allocation < before_categories.size() ? before_categories[allocation]
                                                 : v1::CATEGORY_UNSPECIFIED;
  }
  const std::string& Text(uint32_t id) const {
    return texts[id < texts.size() ? id : 0];
  }
  size_t MemoryBytes() const;
};

// Reads a traced step (LoadWindowedStep), and names what was there before it by
// the run's step graph, if there is one. NOT_FOUND: its baseline is missing;
// RESOURCE_EXHAUSTED: more records than are indexed.
StatusOr<RecordedStep> ReadRecordedStep(Database& db, const std::string& run_id,
                                        const StepRow& row,
                                        const std::string& graph_id);

// What was there before a recorded step. Its records say how much that is, and
// which of it is freed in the step; what it is, the captured step of the run
// says. So that a byte has one name wherever it is shown.
//
//   baseline = static memory          static_parts of the step graph
//            + found by the step      storages that its first op writes
//            + what neither names     unknown

// Fills before_categories, by size, and before_parts.
void NameBefore(const planner::StepGraph& graph, RecordedStep& step);

}  // namespace reprise::server
