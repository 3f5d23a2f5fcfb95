// SPDX-License-Identifier: Apache-2.0
#include "server/collect/op_join.h"

#include <algorithm>

namespace reprise::server {

namespace {

// How many ops that ended after a launch are searched for the one around it.
constexpr size_t kMostSiblings = 4096;
// Capacity of an op's block list that is kept for the next op.
constexpr size_t kKeptBlocks = 8;

void Widen(uint64_t& first_ns, uint64_t& last_ns, uint64_t start_ns,
           uint64_t end_ns) {
  first_ns = first_ns == 0 ? start_ns : std::min(first_ns, start_ns);
  last_ns = std::max(last_ns, end_ns);
}

}  // namespace

void OpJoin::Take(const reprise_slot& slot) {
  switch (slot.kind) {
    case REPRISE_RECORD_ALLOC:
      if (slot.body.alloc.op != 0) TakeAlloc(slot);
      return;
    case REPRISE_RECORD_KERNEL:
    case REPRISE_RECORD_COPY:
    case REPRISE_RECORD_SET:
      return TakeDeviceWork(slot);
    case REPRISE_RECORD_LINK:
      return TakeLink(slot.body.api.correlation, slot.body.api.external_id);
    case REPRISE_RECORD_API: {
      Launch& launch = At(slot.body.api.correlation);
      launch.thread = slot.thread;
      launch.at_ns = slot.ts_ns;
      return;
    }
    case REPRISE_RECORD_OP_BEGIN:
      return TakeOpBegin(slot);
    case REPRISE_RECORD_OP_END:
      return TakeOpEnd(slot);
    case REPRISE_RECORD_STEP:
      // A step mark is inside no op, even if exceptions left some open.
      if (Thread* thread = Known(slot.thread)) Drop(*thread, 0);
      return;
    case REPRISE_RECORD_LOSS:
      last_loss_ns_ = std::max(last_loss_ns_, slot.body.loss.last_ts);
      return;
    default:
      return;
  }
}

uint64_t OpJoin::OpOf(uint32_t correlation) const {
  if (launches_.empty()) return 0;
  const Launch& launch = launches_[correlation % kLaunches];
  return launch.correlation == correlation ? launch.op : 0;
}

// ---- Launches ----

OpJoin::Launch& OpJoin::At(uint32_t correlation) {
  if (launches_.empty()) launches_.resize(kLaunches);
  Launch& launch = launches_[correlation % kLaunches];
  if (launch.correlation != correlation) {
    Settle(launch);
    unattributed_ += launch.waiting;
    launch = Launch{};
    launch.correlation = correlation;
  }
  return launch;
}

void OpJoin::TakeLink(uint32_t correlation, uint64_t op) {
  Launch& launch = At(correlation);
  launch.op = op;
  Settle(launch);
}

void OpJoin::TakeDeviceWork(const reprise_slot& slot) {
  const reprise_body_kernel& kernel = slot.body.kernel;
  Launch& launch = At(kernel.correlation);
  ++launch.waiting;
  const bool timed =
      (kernel.flags & REPRISE_KERNEL_UNTIMED) == 0 && kernel.dur <= kLongestNs;
  if (timed) {
    const uint64_t end_ns = slot.ts_ns + kernel.dur;
    launch.waiting_ns += kernel.dur;
    Widen(launch.first_ns, launch.last_ns, slot.ts_ns, end_ns);
    intervals_.push_back({slot.ts_ns, end_ns});
    if (intervals_.size() > kIntervals) intervals_.pop_front();
  } else {
    // Where its duration cannot be true, its time is not either: one of the
    // next century would spoil every later step.
    const bool dated = (kernel.flags & REPRISE_KERNEL_UNTIMED) != 0;
    last_loss_ns_ = std::max(last_loss_ns_, dated ? slot.ts_ns : newest_op_ns_);
  }
  if (launch.op != 0) Settle(launch);
}

// Attributes waiting kernels to the launch's op, if it is known.
void OpJoin::Settle(Launch& launch) {
  if (launch.waiting == 0) return;
  uint64_t op = launch.op;
  if (op == 0 && launch.thread != 0) op = OpAt(launch.thread, launch.at_ns);
  if (op == 0) return;
  OpFigures& figures = Figures(op);
  figures.kernel_ns += launch.waiting_ns;
  figures.kernels += launch.waiting;
  if (launch.last_ns != 0) {
    Widen(figures.first_ns, figures.last_ns, launch.first_ns, launch.last_ns);
  }
  launch.op = op;
  launch.waiting_ns = 0;
  launch.waiting = 0;
  launch.first_ns = launch.last_ns = 0;
}

uint64_t OpJoin::OpAt(uint32_t thread, uint64_t at_ns) const {
  const auto found = threads_.find(thread);
  if (found == threads_.end()) return 0;
  const std::deque<EndedOp>& ended = found->second.ended;
  // Ops on a thread nest, so among those around this time the innermost ends
  // first.
  auto op = std::lower_bound(ended.begin(), ended.end(), at_ns,
                             [](const EndedOp& candidate, uint64_t time) {
                               return candidate.end_ns < time;
                             });
  for (size_t i = 0; op != ended.end() && i < kMostSiblings; ++op, ++i) {
    if (op->begin_ns <= at_ns) return op->op;
  }
  const std::span<const OpenOp> open = found->second.open();
  for (size_t i = open.size(); i-- > 0;) {
    if (open[i].begin_ns <= at_ns) return open[i].op;
  }
  return 0;
}

// ---- Ops ----

OpFigures& OpJoin::Figures(uint64_t op) {
  if (const auto found = figures_.find(op); found != figures_.end()) {
    return found->second;
  }
  order_.push_back(op);
  if (order_.size() <= kOps) return figures_[op];
  // Reuse the oldest entry and its memory.
  auto node = figures_.extract(order_.front());
  order_.pop_front();
  node.key() = op;
  node.mapped() = OpFigures{};
  return figures_.insert(std::move(node)).position->second;
}

OpJoin::Thread* OpJoin::Known(uint32_t id) {
  if (last_thread_ != nullptr && last_id_ == id) return last_thread_;
  const auto found = threads_.find(id);
  if (found == threads_.end()) return nullptr;
  last_id_ = id;
  last_thread_ = &found->second;  // stable: no thread is ever removed
  return last_thread_;
}

OpJoin::Thread* OpJoin::ThreadOf(uint32_t id) {
  if (Thread* known = Known(id)) return known;
  if (threads_.size() >= kThreads) return nullptr;
  return &threads_[id];
}

void OpJoin::TakeOpBegin(const reprise_slot& slot) {
  Thread* thread = ThreadOf(slot.thread);
  if (thread == nullptr || thread->depth >= kDepth) return;
  if (thread->depth == thread->ops.size()) thread->ops.emplace_back();
  OpenOp& open = thread->ops[thread->depth++];
  open.op = slot.body.op.op;
  open.begin_ns = slot.ts_ns;
  open.held = open.most_held = 0;
  open.allocated = false;
  Figures(open.op).begin_ns = slot.ts_ns;
  newest_op_ns_ = std::max(newest_op_ns_, slot.ts_ns);
}

void OpJoin::TakeOpEnd(const reprise_slot& slot) {
  Thread* thread = Known(slot.thread);
  if (thread == nullptr) return;
  const std::span<OpenOp> open = thread->open();
  // Also ends ops inside it that an exception left open.
  for (size_t i = open.size(); i-- > 0;) {
    if (open[i].op != slot.body.op.op) continue;
    for (size_t inner = open.size(); inner-- > i;) {
      EndOp(*thread, open[inner], slot.ts_ns);
    }
    Drop(*thread, i);
    return;
  }
}

void OpJoin::Drop(Thread& thread, size_t first) {
  for (OpenOp& op : thread.open().subspan(first)) {
    held_blocks_ -= op.blocks.size();
    op.blocks.clear();
    if (op.blocks.capacity() > kKeptBlocks) op.blocks.shrink_to_fit();
  }
  thread.depth = first;
}

void OpJoin::EndOp(Thread& thread, OpenOp& open, uint64_t end_ns) {
  // Beyond the total limit, each thread forgets its own oldest op.
  if (history_ < kHistory) {
    ++history_;
    thread.ended.push_back({open.op, open.begin_ns, end_ns});
  } else if (!thread.ended.empty()) {
    thread.ended.pop_front();
    thread.ended.push_back({open.op, open.begin_ns, end_ns});
  }
  if (!open.allocated) return;
  OpFigures& figures = Figures(open.op);
  figures.workspace_bytes =
      std::max(figures.workspace_bytes, open.most_held - open.held);
}

void OpJoin::TakeAlloc(const reprise_slot& slot) {
  const reprise_body_alloc& alloc = slot.body.alloc;
  if (alloc.what != REPRISE_ALLOC && alloc.what != REPRISE_FREE) return;
  if (alloc.bytes > kLargestBlock) return;
  Thread* thread = Known(slot.thread);
  if (thread == nullptr) return;
  for (OpenOp& open : thread->open()) {
    if (alloc.bytes > 0) {
      if (held_blocks_ >= kHeldBlocks) continue;
      ++held_blocks_;
      open.blocks.emplace_back(alloc.address, alloc.bytes);
      open.held += alloc.bytes;
      open.most_held = std::max(open.most_held, open.held);
      open.allocated = true;
      continue;
    }
    // Only blocks that the op allocated count. Search the newest first, because
    // an address may have been used before.
    const auto block = std::find_if(
        open.blocks.rbegin(), open.blocks.rend(),
        [&alloc](const auto& held) { return held.first == alloc.address; });
    if (block == open.blocks.rend()) continue;
    open.held -= block->second;
    --held_blocks_;
    open.blocks.erase(std::next(block).base());
  }
}

std::shared_ptr<const OpMeasurement> OpJoin::Measure() {
  for (Launch& launch : launches_) Settle(launch);
  auto measured = std::make_shared<OpMeasurement>();
  measured->ops = figures_;
  measured->kernels.assign(intervals_.begin(), intervals_.end());
  measured->last_loss_ns = last_loss_ns_;
  return measured;
}

}  // namespace reprise::server
