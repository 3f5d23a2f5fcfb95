// SPDX-License-Identifier: Apache-2.0
//
// PyTorch memory snapshots, as written by torch.cuda.memory._dump_snapshot.
//
//   {"segments": [{device, total_size, blocks: [{state, requested_size, ..}]}],
//    "device_traces": [[{action, addr, size, time_us, frames}, ...], ...], ...}
//
// The trace is a ring of the newest events; the segments are the state at its
// end. So what was alive before the first event is what is alive at the end
// minus the sum of the events, and an allocation lasts from `alloc` to
// `free_completed`. A snapshot without a history, as of enabled="state", has the
// state alone: its live blocks are shown as if allocated one after the other. A
// snapshot says when memory was allocated, never which op
// read it: it yields a timeline but no step graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "formats/import/byte_source.h"
#include "formats/import/pickle_reader.h"
#include "formats/import/recording.h"

namespace reprise::formats {

using OpenSource = std::function<StatusOr<ByteSource>()>;

class Snapshot {
 public:
  // Reads the file once. `device`: whose memory to show; absent: the device
  // with the most events. INVALID_ARGUMENT: not a snapshot, names the byte;
  // NOT_FOUND: nothing was recorded, or not on that device; RESOURCE_EXHAUSTED:
  // see pickle_reader.h.
  static StatusOr<Snapshot> Open(OpenSource open, std::string name,
                                 std::optional<int> device,
                                 const PickleLimits& limits = {});

  const MemorySummary& summary() const { return summary_; }

  // Reads the file again and passes on its events, and where `segment` is given
  // the segments of the device, as they stand in the file.
  Status Replay(RecordingNames& names, const TakeMemoryEvent& take,
                const TakeSegment& segment = {}) const;

 private:
  Snapshot() = default;

  OpenSource open_;
  PickleLimits limits_;
  MemorySummary summary_;
  size_t device_ = 0;
  bool has_times_ = false;
  bool has_history_ = true;
  int64_t first_us_ = 0;
};

// The stacks of a memory snapshot as texts: the innermost frame outside of
// PyTorch, which names an allocation, and all frames, one a line. A list of
// frames may be shared by any number of events, and be of any length: what is
// looked at of it is bounded, and one that is kept is spelled out once.

// Entries, frames and blocks have about ten keys. They may be shared by any
// number of events, and are searched again for each.
constexpr size_t kMostSnapshotKeys = 64;

// Truncates a text at a character boundary.
std::string_view Cut(std::string_view text, size_t most);

// Returns "train.py:12 loss" for the innermost frame outside PyTorch.
std::string NameOfStack(const PickleValue* frames);

// Returns the frames of a stack, innermost first, one a line:
// "/home/me/train.py:12 loss".
std::string LinesOfStack(const PickleValue* frames);

// The texts of stacks. One that many events share is spelled out once.
class StackTexts {
 public:
  struct Ids {
    uint32_t name = 0;
    uint32_t stack = 0;
  };

  Ids Of(const PickleValue* frames, RecordingNames& names);

 private:
  std::unordered_map<const PickleNode*, Ids> ids_;
};

}  // namespace reprise::formats
