// SPDX-License-Identifier: Apache-2.0
//
// One training step from a torch.profiler trace: which ops ran and what was
// allocated, in order. The file is read twice: first for its steps and memory
// events, then for the ops of the chosen step.
//
// An op is the outermost operator call of its thread, and includes everything
// that runs inside it; frames of autograd around it do not count. If the trace
// has several processes, only the one whose memory is shown counts. With the
// Python frames of with_stack=True, an op has the stack in which it was called.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/import/byte_source.h"
#include "formats/import/recording.h"
#include "formats/import/snapshot.h"
#include "reprise/v1/graph.pb.h"

namespace reprise::formats {

// Reads Chrome trace JSON as torch.profiler writes it (export_chrome_trace), as
// a stream: one event at a time, whatever the file's size.
//
//   {"traceEvents": [{ph, cat, name, tid, ts, dur, args: {...}}, ...], ...}
//
// The text is not trusted: depth and the length of texts are limited, and
// errors name the byte. O(bytes) time, O(one event) memory.

// The fields of an event that are read; absent numbers are 0, absent ids -1.
struct TraceEvent {
  std::string phase;     // "X", "i", ...
  std::string category;  // "cpu_op", "kernel", ...
  std::string name;
  std::string process;  // number or text
  std::string thread;
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  // Its start or its duration cannot be, such as one of 236 years.
  bool has_wrong_time = false;
  int64_t external_id = -1;
  int64_t sequence = -1;
  // For "[memory]" events.
  int64_t bytes = 0;
  uint64_t address = 0;
  int64_t device_type = 0;  // 0 CPU, 1 CUDA
  int64_t device_id = -1;
  int64_t total_allocated = -1;
  int64_t total_reserved = 0;
  std::string part;  // of the step: "forward", ..., in our own exports
  // Bytes of each tensor argument of the op, from its shape and type.
  std::vector<int64_t> input_bytes;
};

using TakeTraceEvent = std::function<Status(const TraceEvent&)>;

// Passes every event to `take`. INVALID_ARGUMENT `byte 17: ...`;
// RESOURCE_EXHAUSTED beyond a limit; or an error of `take`, which ends the
// reading.
Status ReadTraceJson(ByteSource& source, const TakeTraceEvent& take);

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
  size_t stack = 0;  // in TraceStep.stacks; 0: none
};

// Who called an op.
struct TraceStack {
  std::string lines;  // frames, innermost first, one a line
  std::string owner;  // the innermost frame outside of PyTorch; may be empty
  // Within the outermost module: "Block_0.Linear_1". A trace numbers modules by
  // their class.
  std::string module;
};

struct TraceStep {
  int64_t duration_ns = 0;
  int64_t baseline_bytes = 0;
  bool has_kernels = false;
  bool is_device = false;           // memory of a GPU
  std::vector<TraceOp> ops;         // by start
  std::vector<TraceStack> stacks;   // [0] is of ops without frames
  std::vector<MemoryEvent> events;  // by time, since its begin; without names
  // By start; they run within the step, and may have begun before. Their names
  // are places in kernel_names.
  std::vector<RecordedKernel> kernels;
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

// Builds a step graph from a profiler trace. A trace says which ops ran, for
// how long, and when memory was allocated and freed; it does not say which op
// read which tensor. So:
//
//   exact     ops, times, storages with their bytes, first and last op: the
//             graph's memory without a plan is the traced memory
//   inferred  for each of its input shapes, an op reads the newest live storage
//             of that size (in the backward, preferably one that the forward op
//             of the same autograd node had), and also the storages freed while
//             or after it ran, because autograd releases what was read last
//
// A plan of such a graph estimates what a budget costs. It cannot be applied to
// a job; that needs a captured graph.
//
// Storages that are alive when the step begins and die in it are written by a
// first op `reprise.step_begin`, which also has the time that belongs to no op.
struct TraceGraph {
  v1::StepGraph graph;
  // Number of input shapes with one storage of that size to choose from, with
  // several, and with none (parameters and other earlier storages).
  uint64_t certain = 0;
  uint64_t guessed = 0;
  uint64_t unmatched = 0;
};

// O(n log n) in ops and events. INVALID_ARGUMENT: bytes or times do not fit a
// step graph.
StatusOr<TraceGraph> GraphOfTrace(const Trace& trace);

}  // namespace reprise::formats
