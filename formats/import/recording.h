// SPDX-License-Identifier: Apache-2.0
//
// What an importer found in a file: the memory of one device, event by event. A
// file may hold more events than fit into memory, so they are passed to a sink,
// in order, after a first pass has determined how many there are, what was
// alive before, and the peak.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "reprise/v1/ingest.pb.h"

namespace reprise::formats {

// One allocation (bytes > 0) or free (bytes < 0).
struct MemoryEvent {
  int64_t time_ns = 0;  // since the first event
  uint64_t address = 0;
  int64_t bytes = 0;
  uint32_t name = 0;    // in RecordingNames; 0: unknown
  uint32_t stack = 0;   // the same
  uint32_t thread = 0;  // of the process, from 0
};

// The begin or end of an operator call; `op` counts from 1.
struct OpMark {
  int64_t time_ns = 0;
  uint64_t op = 0;
  uint32_t name = 0;
  uint32_t thread = 0;
  bool begins = false;
};

// A kernel, copy or set on a device.
struct RecordedKernel {
  int64_t start_ns = 0;  // since the first event
  int64_t duration_ns = 0;
  uint64_t stream = 0;
  uint32_t device = 0;
  uint32_t name = 0;  // in RecordingNames
  v1::RecordKind kind = v1::RECORD_KIND_KERNEL;
};

// A segment of a caching allocator at the end of a recording; its blocks cover
// it without holes, from `address` on.
struct RecordedBlock {
  int64_t bytes = 0;
  int64_t asked_bytes = 0;  // 0: unknown, or free
  v1::BlockState state = v1::BLOCK_STATE_FREE;
  uint32_t stack = 0;  // in RecordingNames; 0: unknown
};
struct RecordedSegment {
  uint64_t address = 0;
  int64_t bytes = 0;
  uint64_t stream = 0;
  std::string pool = {};  // "large", "small"
  std::vector<RecordedBlock> blocks = {};
};

// Interned names of allocating ops, and stacks; id 0 means unknown. Bounded:
// after 200,000 texts or 64 MiB of them, all further ones are unknown.
class RecordingNames {
 public:
  uint32_t Intern(std::string_view text);
  // Frames, innermost first, one a line.
  uint32_t InternStack(std::string_view lines);
  // The text of id is texts()[id - 1].
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  uint32_t InternKey(std::string key);

  std::vector<std::string> texts_;
  std::unordered_map<std::string, uint32_t> ids_;
  size_t bytes_ = 0;
};

// What the first pass says about the events of the second.
struct MemorySummary {
  std::string name = {};    // of the run: the file's
  std::string device = {};  // "cuda:0", "cpu"
  std::string format = {};  // "memory snapshot", "profiler trace"
  uint64_t events = 0;
  uint64_t ops = 0;  // operator calls; 0: the file has none
  int64_t duration_ns = 0;
  int64_t baseline_bytes = 0;  // alive before the first event
  int64_t peak_bytes = 0;      // including the baseline
  int64_t peak_at_ns = 0;
  int64_t reserved_bytes = 0;  // by the allocator at the end; 0: unknown
  // What the file did not contain, one sentence each.
  std::vector<std::string> notes = {};
};

// The running sum of events, with its extremes.
struct MemorySum {
  uint64_t events = 0;
  int64_t live = 0;
  int64_t lowest = 0;
  int64_t highest = 0;
  int64_t highest_at_ns = 0;
  uint64_t highest_event = 0;

  // Adds an event. Returns false if the sum would not fit into 62 bits.
  bool Add(int64_t time_ns, int64_t bytes);
};

using TakeMemoryEvent = std::function<Status(const MemoryEvent&)>;
using TakeSegment = std::function<Status(const RecordedSegment&)>;
using TakeKernel = std::function<Status(const RecordedKernel&)>;
using TakeOpMark = std::function<Status(const OpMark&)>;

}  // namespace reprise::formats
