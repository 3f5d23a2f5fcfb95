// SPDX-License-Identifier: Apache-2.0
//
// Finds the op that a kernel belongs to, and what each op cost: kernel time,
// and the workspace it allocated.
//
// Records arrive in ring order, but the device's tracer delivers its own
// records late and unordered. So what is known about a launch is collected
// under its correlation id until both sides have arrived:
//
//   LINK   correlation -> op             pushed by the op while it launched
//   API    correlation -> thread, time   without a link: the innermost op that
//                                        ran on that thread at that time
//   KERNEL, COPY, SET  correlation -> time on the device
//
// Correlation ids count up, so a table indexed by their low bits holds the last
// kLaunches launches. A kernel whose launch has been overwritten, or belonged
// to no op, counts as unattributed. A kernel of a CUDA graph has the
// correlation id of the graph's launch, so it belongs to the op that launched
// the graph.
//
// The workspace of an op is the most bytes that its own allocations held at
// once, less those it leaves allocated (its outputs). Ops inside it count
// towards it too. Only allocations on the op's own thread can be attributed to
// it.
//
// A session's records are untrusted. All state here is bounded, and a record
// costs O(1), an allocation inside an op O(its depth).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "profiler/include/reprise_wire.h"

namespace reprise::server {

struct OpFigures {
  uint64_t begin_ns = 0;   // 0: its begin was not seen
  uint64_t kernel_ns = 0;  // sum over its kernels, copies and sets
  uint32_t kernels = 0;
  // First start and last end of its kernels; 0 without any.
  uint64_t first_ns = 0, last_ns = 0;
  // -1: its end was not seen, or it allocated nothing.
  int64_t workspace_bytes = -1;
};

struct KernelInterval {
  uint64_t start_ns = 0, end_ns = 0;
};

// What was measured about the ops of a session; a copy for another thread.
struct OpMeasurement {
  std::unordered_map<uint64_t, OpFigures> ops;
  std::vector<KernelInterval> kernels;  // the newest ones, unordered
  // When the newest missing record was made; 0: none is missing.
  uint64_t last_loss_ns = 0;
};

class OpJoin {
 public:
  static constexpr size_t kLaunches = 1 << 16;
  static constexpr size_t kOps = 1 << 16;
  static constexpr size_t kIntervals = 1 << 17;
  static constexpr size_t kThreads = 1024;
  static constexpr size_t kDepth = 32;
  static constexpr size_t kHistory = 1 << 16;     // ended ops
  static constexpr size_t kHeldBlocks = 1 << 16;  // of open ops
  // Longer kernels and larger blocks are treated as corrupt records.
  static constexpr uint64_t kLongestNs = uint64_t{1} << 40;
  static constexpr int64_t kLargestBlock = int64_t{1} << 46;

  // Adds one checked record (FillRow) whose clock has been converted.
  void Take(const reprise_slot& slot);

  // Returns the op of a launch if it is known, else 0.
  uint64_t OpOf(uint32_t correlation) const;

  bool empty() const { return figures_.empty(); }
  // Kernels without a known op: launched outside of any op, or forgotten.
  uint64_t unattributed() const { return unattributed_; }

  // Attributes launches without a link by thread and time, and returns a copy
  // of all measurements.
  std::shared_ptr<const OpMeasurement> Measure();

 private:
  struct Launch {
    uint32_t correlation = 0;
    uint32_t thread = 0;  // of its API record; 0: none arrived
    uint64_t at_ns = 0;
    uint64_t op = 0;
    // Kernels that arrived before the op was known.
    uint64_t waiting_ns = 0;
    uint32_t waiting = 0;
    uint64_t first_ns = 0, last_ns = 0;
  };
  struct OpenOp {
    uint64_t op = 0;
    uint64_t begin_ns = 0;
    int64_t held = 0, most_held = 0;
    bool allocated = false;
    std::vector<std::pair<uint64_t, int64_t>> blocks;  // address, bytes
  };
  struct EndedOp {
    uint64_t op = 0, begin_ns = 0, end_ns = 0;
  };
  struct Thread {
    // Outermost first. Entries from `depth` on are kept to reuse their memory.
    std::vector<OpenOp> ops;
    size_t depth = 0;
    std::deque<EndedOp> ended;  // by end_ns

    std::span<OpenOp> open() { return std::span(ops).first(depth); }
    std::span<const OpenOp> open() const { return std::span(ops).first(depth); }
  };

  void TakeDeviceWork(const reprise_slot& slot);
  void TakeOpBegin(const reprise_slot& slot);
  void TakeOpEnd(const reprise_slot& slot);
  void TakeAlloc(const reprise_slot& slot);
  void TakeLink(uint32_t correlation, uint64_t op);
  Launch& At(uint32_t correlation);
  void Settle(Launch& launch);
  void EndOp(Thread& thread, OpenOp& open, uint64_t end_ns);
  // Removes the open ops from `first` on.
  void Drop(Thread& thread, size_t first);
  uint64_t OpAt(uint32_t thread, uint64_t at_ns) const;
  OpFigures& Figures(uint64_t op);
  // Returns the state of a thread; null if there is none.
  Thread* Known(uint32_t id);
  Thread* ThreadOf(uint32_t id);

  std::vector<Launch> launches_;  // kLaunches once there is one
  std::unordered_map<uint32_t, Thread> threads_;
  uint32_t last_id_ = 0;  // of the thread looked up last
  Thread* last_thread_ = nullptr;
  std::unordered_map<uint64_t, OpFigures> figures_;
  std::deque<uint64_t> order_;  // of figures_, oldest first
  std::deque<KernelInterval> intervals_;
  size_t history_ = 0;
  size_t held_blocks_ = 0;
  uint64_t unattributed_ = 0;
  uint64_t last_loss_ns_ = 0;
  uint64_t newest_op_ns_ = 0;  // when an op was last begun
};

}  // namespace reprise::server
