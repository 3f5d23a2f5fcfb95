// SPDX-License-Identifier: Apache-2.0
//
// Passes on the chosen step, event by event.
#include <algorithm>
#include <numeric>
#include <optional>

#include "formats/import/trace.h"

namespace reprise::formats {

OpsByTime::OpsByTime(const std::vector<TraceOp>& ops) : ops_(ops) {
  for (size_t i = 0; i < ops.size(); ++i) {
    if (by_thread_.size() <= ops[i].thread) {
      by_thread_.resize(ops[i].thread + 1);
    }
    by_thread_[ops[i].thread].push_back(static_cast<int>(i));
  }
}

int OpsByTime::At(uint32_t thread, int64_t time_ns) const {
  if (thread >= by_thread_.size()) return -1;
  const std::vector<int>& ops = by_thread_[thread];
  const auto after = std::upper_bound(
      ops.begin(), ops.end(), time_ns, [&](int64_t time, int op) {
        return time < ops_[static_cast<size_t>(op)].start_ns;
      });
  if (after == ops.begin()) return -1;
  const int op = *std::prev(after);
  return time_ns <= ops_[static_cast<size_t>(op)].end_ns ? op : -1;
}

int OpsByTime::BegunBy(int64_t time_ns) const {
  const auto after = std::upper_bound(
      ops_.begin(), ops_.end(), time_ns,
      [](int64_t time, const TraceOp& op) { return time < op.start_ns; });
  return static_cast<int>(after - ops_.begin());
}

namespace {

// Begins and ends of ops by time. A memory event at the begin of an op belongs
// to it, and so does one at its end, unless another op begins then. At equal
// times the order is: ends followed by a begin, begins, memory events, other
// ends.
class OpMarks {
 public:
  OpMarks(const std::vector<TraceOp>& ops, RecordingNames& names,
          const TakeOpMark& take)
      : ops_(ops), names_(names), take_(take), by_end_(ops.size()) {
    std::iota(by_end_.begin(), by_end_.end(), size_t{0});
    std::stable_sort(by_end_.begin(), by_end_.end(), [&](size_t a, size_t b) {
      return ops_[a].end_ns < ops_[b].end_ns;
    });
  }

  // Passes on all marks that precede a memory event at `time_ns`.
  Status Until(int64_t time_ns) {
    while (true) {
      const bool more = begun_ < ops_.size();
      const bool begins = more && ops_[begun_].start_ns <= time_ns;
      // An op that has begun ends before another one begins in its place.
      const bool first = ended_ < ops_.size() && by_end_[ended_] < begun_ &&
                         (!more || End() <= ops_[begun_].start_ns);
      if (first && (begins || End() < time_ns)) {
        RETURN_IF_ERROR(Take(by_end_[ended_++], false));
      } else if (begins) {
        RETURN_IF_ERROR(Take(begun_++, true));
      } else {
        return OkStatus();
      }
    }
  }

 private:
  int64_t End() const { return ops_[by_end_[ended_]].end_ns; }
  Status Take(size_t i, bool begins) {
    const TraceOp& op = ops_[i];
    return take_({.time_ns = begins ? op.start_ns : op.end_ns,
                  .op = i + 1,
                  .name = names_.Intern(op.name),
                  .thread = op.thread,
                  .begins = begins});
  }

  const std::vector<TraceOp>& ops_;
  RecordingNames& names_;
  const TakeOpMark& take_;
  std::vector<size_t> by_end_;
  size_t begun_ = 0, ended_ = 0;
};

}  // namespace

Status Trace::ReplayKernels(RecordingNames& names,
                            const TakeKernel& take) const {
  for (const RecordedKernel& kernel : step_.kernels) {
    RecordedKernel out = kernel;
    const int64_t late = std::max<int64_t>(-kernel.start_ns, 0);
    out.start_ns += late;
    out.duration_ns -= late;
    out.name = names.Intern(step_.kernel_names[kernel.name]);
    RETURN_IF_ERROR(take(out));
  }
  return OkStatus();
}

Status Trace::Replay(RecordingNames& names, const TakeMemoryEvent& take,
                     const TakeOpMark& mark) const {
  const OpsByTime ops(step_.ops);
  std::optional<OpMarks> marks;
  if (mark) marks.emplace(step_.ops, names, mark);
  struct Ids {
    uint32_t owner = 0, lines = 0;
  };
  std::vector<Ids> ids;  // of stacks
  for (const TraceStack& stack : step_.stacks) {
    ids.push_back({.owner = names.Intern(stack.owner),
                   .lines = names.InternStack(stack.lines)});
  }
  for (const MemoryEvent& event : step_.events) {
    if (marks) {
      RETURN_IF_ERROR(marks->Until(event.time_ns));
    }
    const int op = ops.At(event.thread, event.time_ns);
    MemoryEvent out = event;
    if (event.bytes > 0 && op >= 0) {
      const TraceOp& by = step_.ops[static_cast<size_t>(op)];
      out.stack = ids[by.stack].lines;
      out.name = ids[by.stack].owner;
      if (out.name == 0) out.name = names.Intern(by.name);
    }
    RETURN_IF_ERROR(take(out));
  }
  return marks ? marks->Until(INT64_MAX) : OkStatus();
}

}  // namespace reprise::formats
