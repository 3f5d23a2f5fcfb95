// SPDX-License-Identifier: Apache-2.0
//
// One training step from a torch.profiler trace: which ops ran and what was
// allocated, in order. The file is read twice: first for its steps and memory
// events, then for the ops of the chosen step.
//
// An op is the outermost operator call of its thread, and includes everything
// that runs inside it; frames of autograd around it do not count. If the trace
// has several processes, only the one whose memory is shown counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/import/recording.h"
#include "formats/import/snapshot.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::formats {

struct TraceOp {
  std::string name;
  int64_t start_ns = 0, end_ns = 0;  // since the step's begin
  int64_t kernel_ns = 0;             // sum of its kernels; 0 without any
  uint32_t thread = 0;
  bool backward = false;
  bool optimizer = false;
  std::vector<int64_t> input_bytes;
  // Autograd's sequence numbers: of the calls inside it, and of the node around
  // it.
  std::vector<int64_t> sequences;
  int64_t node_sequence = -1;
};

struct TraceAllocation {
  int64_t time_ns = 0;
  uint64_t address = 0;
  int64_t bytes = 0;  // negative: a free
  uint32_t thread = 0;
};

struct TraceKernel {
  int64_t start_ns = 0;  // since the step's begin; negative: it ran before
  int64_t duration_ns = 0;
  uint64_t stream = 0;
  uint32_t device = 0;
  uint32_t name = 0;  // in TraceStep.kernel_names
  v1::RecordKind kind = v1::RECORD_KIND_KERNEL;
};

struct TraceStep {
  int64_t duration_ns = 0;
  int64_t baseline_bytes = 0;
  bool has_kernels = false;
  bool is_device = false;               // memory of a GPU
  std::vector<TraceOp> ops;             // by start
  std::vector<TraceAllocation> events;  // by time
  std::vector<TraceKernel> kernels;     // by start; they run within the step
  std::vector<std::string> kernel_names;
};

class Trace {
 public:
  // Reads a trace. `step`: the number of its ProfilerStep; absent: the last
  // complete one, or the whole file if there is none. Errors as Snapshot::Open;
  // NOT_FOUND also for a trace without memory events.
  static StatusOr<Trace> Open(const OpenSource& open, std::string name,
                              std::optional<int64_t> step,
                              std::optional<int> device);

  const MemorySummary& summary() const { return summary_; }
  void AddNote(std::string note) { summary_.notes.push_back(std::move(note)); }
  const TraceStep& step() const { return step_; }

  // Passes on memory events and, if `mark` is given, the ops between them, by
  // time.
  Status Replay(RecordingNames& names, const TakeMemoryEvent& take,
                const TakeOpMark& mark = {}) const;
  // Passes on the kernels, by start; one that began before the step from there.
  Status ReplayKernels(RecordingNames& names, const TakeKernel& take) const;

 private:
  Trace() = default;
  MemorySummary summary_;
  TraceStep step_;
};

// Finds the op that a thread runs at a time; -1 for none. `by_thread_[t]` has
// the indices of the ops of thread t, by start.
class OpsByTime {
 public:
  explicit OpsByTime(const std::vector<TraceOp>& ops);
  int At(uint32_t thread, int64_t time_ns) const;
  // Returns how many ops, of any thread, have begun by then.
  int BegunBy(int64_t time_ns) const;

 private:
  const std::vector<TraceOp>& ops_;
  std::vector<std::vector<int>> by_thread_;
};

}  // namespace reprise::formats
