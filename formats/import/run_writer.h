// SPDX-License-Identifier: Apache-2.0
//
// Writes a recording as a run: the messages that a collector would have sent
// for one traced step (proto/reprise/v1/ingest.proto), so that the server and
// its page need no knowledge of importers.
//
//   Hello ─▶ Caps ─▶ STEP, BASELINE ─▶ Defs?, ALLOC, OP_BEGIN, OP_END ...
//         ─▶ step report ─▶ Bye
//
// Segments of the allocator go into chunks of their own, wherever in the file
// they stand. Above 10 million events, groups of neighbouring events are merged: the lowest,
// the highest and the last value of each group stay. So no peak is lost, but
// the names of the allocating ops are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "formats/import/recording.h"
#include "reprise/v1/ingest.pb.h"

namespace reprise::formats {

using SendUp = std::function<Status(const v1::Up&)>;

struct RunIdentity {
  std::string run_id;
  std::string session_id;
  std::string host;
  int64_t now_ns = 0;  // Unix time
};

class RunWriter {
 public:
  static constexpr uint64_t kMostEvents = 10'000'000;

  RunWriter(const RunIdentity& identity, const MemorySummary& summary,
            const RecordingNames& names, SendUp send,
            uint64_t most_events = kMostEvents);

  Status Begin();
  // Adds an event or a mark, in order of time.
  Status Add(const MemoryEvent& event);
  Status Add(const OpMark& mark);
  // Adds a kernel, in order of time; not between events.
  Status Add(const RecordedKernel& kernel);
  // Adds a segment, at any time before the end.
  Status Add(const RecordedSegment& segment);
  // Ends the step, `step_ns` after its begin. `names` may still grow until
  // then: each name is sent before the first record that uses it.
  Status End(int64_t step_ns);

  // Instead of all the above: writes a run in which nothing was measured.
  Status WriteWithoutMemory();

  // Returns whether a recording has too many events to write each of them.
  static bool Folds(const MemorySummary& summary);
  uint64_t records() const { return records_; }

 private:
  // What a record has besides its time and kind.
  struct Fields {
    int64_t bytes = 0;
    uint64_t address = 0;
    uint32_t name = 0;
    uint32_t stack = 0;
    uint64_t extra = 0;
    uint64_t op = 0;
    uint32_t thread = 0;
    int64_t duration_ns = -1;  // of kernels, which have a stream and a device
    uint64_t stream = 0;
    uint32_t device = 0;
  };

  // Adds a record; `time_ns` is relative to the begin of the step.
  Status Record(int64_t time_ns, v1::RecordKind kind, const Fields& fields);
  Status Introduce();
  Status SayBye();
  Status Allocation(const MemoryEvent& event);
  Status FlushGroup();
  Status FlushChunk();
  Status SendNames();
  Status SendNotes();

  const RunIdentity identity_;
  const MemorySummary summary_;
  const RecordingNames& names_;
  const SendUp send_;

  uint64_t group_ = 1;  // events per group
  uint64_t in_group_ = 0;
  int64_t drawn_ = 0;  // the sum as written so far, and the true one
  int64_t sum_ = 0;
  int64_t low_ = 0, high_ = 0, low_at_ = 0, high_at_ = 0, last_at_ = 0;

  v1::Columns columns_;
  uint64_t seq_ = 0;
  uint64_t t0_ns_ = 0, t1_ns_ = 0;
  uint64_t records_ = 0;
  size_t names_sent_ = 0;
};

}  // namespace reprise::formats
