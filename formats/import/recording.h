// SPDX-License-Identifier: Apache-2.0
//
// What an importer found in a file: the life of one device's memory, event by
// event. Files may hold more events than memory does, so they come to a sink,
// in order, after a first reading has told how many there are, what was alive
// before, and how high they go.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace reprise::formats {

// One allocation (bytes > 0) or free (bytes < 0).
struct MemoryEvent {
  int64_t time_ns = 0;  // since the first event
  uint64_t address = 0;
  int64_t bytes = 0;
  uint32_t name = 0;    // in RecordingNames; 0: unknown
  uint32_t thread = 0;  // of the process, counted from 0
};

// An operator call begins or ends; `op` counts from 1.
struct OpMark {
  int64_t time_ns = 0;
  uint64_t op = 0;
  uint32_t name = 0;
  uint32_t thread = 0;
  bool begins = false;
};

// Who allocated, as text, each once; 0 is nobody. Bounded: from the 100,000th
// on all are nobody.
class RecordingNames {
 public:
  uint32_t Intern(std::string_view text);
  // texts()[id - 1].
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
  std::unordered_map<std::string, uint32_t> ids_;
};

// What a first reading says about the events of a second one.
struct MemorySummary {
  std::string name = {};    // of the run: the file's
  std::string device = {};  // "cuda:0", "cpu"
  std::string format = {};  // "memory snapshot", "profiler trace"
  uint64_t events = 0;
  uint64_t ops = 0;  // operator calls; 0: a file without any
  int64_t duration_ns = 0;
  int64_t baseline_bytes = 0;  // alive before the first event
  int64_t peak_bytes = 0;      // baseline included
  int64_t peak_at_ns = 0;
  int64_t reserved_bytes = 0;  // by the allocator at the end; 0: not said
  // What the file could not tell, one sentence each.
  std::vector<std::string> notes = {};
};

// The running sum of events: its extremes and where they are.
struct MemorySum {
  uint64_t events = 0;
  int64_t live = 0;
  int64_t lowest = 0;
  int64_t highest = 0;
  int64_t highest_at_ns = 0;
  uint64_t highest_event = 0;

  // False: the sum would not fit into 62 bits.
  bool Add(int64_t time_ns, int64_t bytes);
};

using TakeMemoryEvent = std::function<Status(const MemoryEvent&)>;
using TakeOpMark = std::function<Status(const OpMark&)>;

}  // namespace reprise::formats
