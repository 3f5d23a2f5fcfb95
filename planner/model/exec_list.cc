// SPDX-License-Identifier: Apache-2.0
#include "planner/model/exec_list.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace reprise::planner {
namespace {

constexpr int64_t kFindTicks = 7;  // a block's maximum, known or looked for
constexpr int64_t kNothing = std::numeric_limits<int64_t>::min() / 4;

int CountStates(const Problem& problem) {
  int count = 0;
  for (OpId o = 0; o < problem.op_count; ++o) {
    const Op& op = problem.graph->ops[o];
    count += op.kind == OpKind::kSeeded && op.state_bytes > 0 &&
             problem.rules.may_rerun[o] != 0;
  }
  return count;
}

}  // namespace

ExecList::ExecList(const Problem& problem)
    : problem_(problem),
      state_begin_(static_cast<StorageId>(problem.bytes.size())),
      bytes_(problem.bytes),
      runs_(problem.op_count, 0) {
  bytes_.reserve(bytes_.size() + CountStates(problem));
  AddTouches();
  events_.resize(bytes_.size());
}

void ExecList::AddTouches() {
  const Versions& versions = problem_.versions;
  holds_.resize(problem_.bytes.size());
  for (StorageId s = 0; s < state_begin_; ++s) {
    const OpId held = problem_.rules.held_until[s];
    if (held == kNoOp) continue;
    ValueId present = versions.first_value[s];
    while (present + 1 < versions.first_value[s + 1] &&
           versions.maker[present + 1] <= held) {
      ++present;
    }
    holds_[s] = {.node = held, .need = present};
  }
  touch_begin_.push_back(0);
  for (OpId o = 0; o < problem_.op_count; ++o) {
    const size_t begin = touches_.size();
    for (const StorageId s : problem_.Writes(o)) {
      touches_.push_back({s, kNoValue, versions.first_value[s], true});
    }
    for (const ValueId v : versions.Need(o)) {
      touches_.push_back({versions.storage[v], v, kNoValue, false});
    }
    for (const ValueId v : versions.Make(o)) {
      for (size_t i = begin; i < touches_.size(); ++i) {
        if (touches_[i].storage == versions.storage[v]) touches_[i].make = v;
      }
    }
    for (size_t i = begin; i < touches_.size(); ++i) {
      // The release is an event of this op.
      Event& hold = holds_[touches_[i].storage];
      if (hold.node == o) hold.node = -1;
    }
    const Op& op = problem_.graph->ops[o];
    if (op.kind == OpKind::kSeeded && op.state_bytes > 0 &&
        problem_.rules.may_rerun[o] != 0) {
      touches_.push_back(
          {static_cast<StorageId>(bytes_.size()), kNoValue, kNoValue, false});
      bytes_.push_back(op.state_bytes);
    }
    touch_begin_.push_back(static_cast<int32_t>(touches_.size()));
  }
  for (const ValueId v : problem_.end_need) {
    touches_.push_back({versions.storage[v], v, kNoValue, false});
  }
  touch_begin_.push_back(static_cast<int32_t>(touches_.size()));
}

ExecList::Event ExecList::EventOf(const Touch& touch, Node node) const {
  Event event{.node = node, .need = touch.need, .make = touch.make};
  if (!touch.writes) return event;
  const StorageId s = touch.storage;
  const OpId held = problem_.rules.held_until[s];
  // Recomputed while its first life is held or pinned: it must be present in
  // the version that was made, and no life begins.
  const bool stays = IsRerun(node) && (problem_.graph->storages[s].pinned ||
                                       (held != kNoOp && IsBefore(node, held)));
  event.starts = !stays;
  if (stays) event.need = event.make;
  return event;
}

bool ExecList::IsBad(const std::vector<Event>& events, size_t index) const {
  if (index >= events.size()) return false;
  const Event& event = events[index];
  return event.need != kNoValue &&
         (index == 0 || events[index - 1].After() != event.need);
}

// ---------------------------------------------------------------------------
// The whole list

void ExecList::Assign(std::span<const OpId> execs) {
  const int op_count = problem_.op_count;
  nodes_.assign(op_count + 1, {});
  unused_.clear();
  reruns_.clear();
  log_.clear();
  std::fill(runs_.begin(), runs_.end(), 0);
  for (std::vector<Event>& events : events_) events.clear();
  std::vector<Node> order;
  order.reserve(execs.size() + 1);
  time_ns_ = 0;
  for (const OpId o : execs) {
    Node node = o;
    if (runs_[o]++ > 0) {
      node = static_cast<Node>(nodes_.size());
      nodes_.push_back({});
      nodes_[node].rerun_slot = static_cast<int32_t>(reruns_.size());
      reruns_.push_back(node);
      time_ns_ += problem_.rules.rerun_ns[o];
    } else {
      time_ns_ += problem_.time_ns[o];
    }
    nodes_[node].op = o;
    nodes_[node].own_bytes = problem_.workspace[o];
    order.push_back(node);
  }
  nodes_[op_count].op = op_count;
  order.push_back(op_count);
  OpId leads_to = op_count;
  for (size_t i = order.size(); i-- > 0;) {
    if (!IsRerun(order[i])) leads_to = order[i];
    nodes_[order[i]].leads_to = leads_to;
  }
  Fill(order);
  AccountAll();
  if (problem_.rules.windows.empty()) return;
  // A re-run outside its windows makes the list invalid for good.
  for (const Node node : reruns_) {
    clashes_ +=
        !problem_.rules.IsInWindow(nodes_[node].op, nodes_[node].leads_to);
  }
}

void ExecList::Fill(std::span<const Node> order) {
  constexpr size_t kFill = kBlock / 2;
  const size_t count = (order.size() + kFill - 1) / kFill;
  blocks_.assign(count, {});
  order_.resize(count);
  rank_.resize(count);
  pending_.assign(count, 0);
  most_.assign(count, kNothing);
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t b = static_cast<int32_t>(i / kFill);
    Block& block = blocks_[b];
    order_[b] = rank_[b] = b;
    nodes_[order[i]].block = b;
    nodes_[order[i]].offset = block.count;
    block.nodes[block.count++] = order[i];
  }
}

// Computes events, lives and memory of the list from scratch.
void ExecList::AccountAll() {
  std::vector<std::vector<StorageId>> held_at(problem_.op_count);
  for (StorageId s = 0; s < state_begin_; ++s) {
    if (holds_[s].node >= 0) held_at[holds_[s].node].push_back(s);
  }
  for (const int32_t b : order_) {
    Block& block = blocks_[b];
    for (int32_t i = 0; i < block.count; ++i) {
      const Node node = block.nodes[i];
      const OpId o = nodes_[node].op;
      for (int32_t t = touch_begin_[o]; t < touch_begin_[o + 1]; ++t) {
        const Event event = EventOf(touches_[t], node);
        if (IsRerun(node) && touches_[t].writes && !event.starts &&
            problem_.capabilities.duplicate_outputs) {
          nodes_[node].own_bytes += bytes_[touches_[t].storage];
        }
        events_[touches_[t].storage].push_back(event);
      }
      if (node < problem_.op_count) {
        for (const StorageId s : held_at[node]) {
          events_[s].push_back(holds_[s]);
        }
      }
    }
  }
  clashes_ = 0;
  std::vector<int64_t> born(nodes_.size(), 0);
  for (StorageId s = 0; s < static_cast<StorageId>(events_.size()); ++s) {
    const std::vector<Event>& events = events_[s];
    if (IsState(s) && events.size() < 2) continue;
    for (size_t i = 0; i < events.size(); ++i) {
      clashes_ += IsBad(events, i);
      if (i == 0 || events[i].starts) born[events[i].node] += bytes_[s];
      if (i + 1 == events.size() || events[i + 1].starts) {
        nodes_[events[i].node].ending_bytes += bytes_[s];
      }
    }
  }
  int64_t live = problem_.static_bytes;
  for (size_t rank = 0; rank < order_.size(); ++rank) {
    Block& block = blocks_[order_[rank]];
    for (int32_t i = 0; i < block.count; ++i) {
      const NodeInfo& info = nodes_[block.nodes[i]];
      live += born[block.nodes[i]];
      block.bytes[i] = live + info.own_bytes;
      live -= info.ending_bytes;
    }
    FindMost(static_cast<int32_t>(rank));
  }
  ticks_ += 8 * static_cast<int64_t>(nodes_.size());
}

std::vector<OpId> ExecList::Execs() const {
  std::vector<OpId> execs;
  execs.reserve(nodes_.size());
  for (const int32_t b : order_) {
    const Block& block = blocks_[b];
    for (int32_t i = 0; i < block.count; ++i) {
      if (block.nodes[i] != End()) execs.push_back(nodes_[block.nodes[i]].op);
    }
  }
  return execs;
}

// ---------------------------------------------------------------------------
// One change

bool ExecList::MayInsert(OpId op, Node next) const {
  if (!problem_.rules.MayRunAgain(op, nodes_[next].leads_to)) return false;
  if (!IsBefore(op, next)) return false;
  const int most = problem_.capabilities.max_runs;
  return most == 0 || runs_[op] < most;
}

ExecList::Node ExecList::InsertBefore(Node next, OpId op) {
  const Node node = DoInsert(next, op);
  log_.push_back({true, op, node, next});
  return node;
}

void ExecList::Erase(Node rerun) {
  const Node next = Move(rerun, 1);
  log_.push_back({false, nodes_[rerun].op, rerun, next});
  DoErase(rerun);
}

void ExecList::UndoTo(size_t mark) {
  while (log_.size() > mark) {
    const Change change = log_.back();
    log_.pop_back();
    if (change.inserted) {
      DoErase(change.node);
    } else {
      // Numbers are reused last in, first out, so it gets its old number.
      DoInsert(change.next, change.op);
    }
  }
}

ExecList::Node ExecList::DoInsert(Node next, OpId op) {
  if (blocks_[nodes_[next].block].count == kBlock) {
    Split(rank_[nodes_[next].block]);
  }
  Node node;
  if (unused_.empty()) {
    node = static_cast<Node>(nodes_.size());
    nodes_.push_back({});
  } else {
    node = unused_.back();
    unused_.pop_back();
  }
  const NodeInfo& before = nodes_[Previous(next)];
  const int64_t live =
      BytesAt(Previous(next)) - before.own_bytes - before.ending_bytes;
  NodeInfo& info = nodes_[node];
  info.op = op;
  info.block = nodes_[next].block;
  info.offset = nodes_[next].offset;
  info.leads_to = nodes_[next].leads_to;
  info.own_bytes = problem_.workspace[op];
  info.ending_bytes = 0;
  info.rerun_slot = static_cast<int32_t>(reruns_.size());
  reruns_.push_back(node);

  Block& block = blocks_[info.block];
  const int32_t rank = rank_[info.block];
  for (int32_t i = block.count; i > info.offset; --i) {
    block.nodes[i] = block.nodes[i - 1];
    block.bytes[i] = block.bytes[i - 1];
    nodes_[block.nodes[i]].offset = i;
  }
  ++block.count;
  block.nodes[info.offset] = node;
  block.bytes[info.offset] = live + info.own_bytes - pending_[rank];
  most_[rank] = std::max(most_[rank], live + info.own_bytes);

  for (int32_t t = touch_begin_[op]; t < touch_begin_[op + 1]; ++t) {
    AddEvent(touches_[t], node);
  }
  ++runs_[op];
  time_ns_ += problem_.rules.rerun_ns[op];
  ticks_ += 12;
  return node;
}

void ExecList::DoErase(Node node) {
  const NodeInfo info = nodes_[node];
  for (int32_t t = touch_begin_[info.op]; t < touch_begin_[info.op + 1]; ++t) {
    RemoveEvent(touches_[t], node);
  }
  Block& block = blocks_[info.block];
  --block.count;
  for (int32_t i = info.offset; i < block.count; ++i) {
    block.nodes[i] = block.nodes[i + 1];
    block.bytes[i] = block.bytes[i + 1];
    nodes_[block.nodes[i]].offset = i;
  }
  FindMost(rank_[info.block]);
  reruns_[info.rerun_slot] = reruns_.back();
  nodes_[reruns_.back()].rerun_slot = info.rerun_slot;
  reruns_.pop_back();
  unused_.push_back(node);
  nodes_[node].block = -1;
  --runs_[info.op];
  time_ns_ -= problem_.rules.rerun_ns[info.op];
  ticks_ += 12;
}

void ExecList::AddEvent(const Touch& touch, Node node) {
  std::vector<Event>& events = events_[touch.storage];
  const int64_t bytes = bytes_[touch.storage];
  const int32_t at = FirstEventFrom(touch.storage, node);
  assert(at > 0 && "a re-run follows the first run");
  const Event event = EventOf(touch, node);
  const Node previous = events[at - 1].node;
  const bool goes_on =
      at < static_cast<int32_t>(events.size()) && !events[at].starts;
  if (event.starts) {
    if (goes_on) {
      AddBetween(previous, node, -bytes);
      nodes_[previous].ending_bytes += bytes;
    } else {
      AddAt(node, bytes);
      nodes_[node].ending_bytes += bytes;
    }
  } else if (!goes_on) {
    AddBetween(previous, node, bytes);
    AddAt(node, bytes);
    nodes_[node].ending_bytes += bytes;
    if (IsState(touch.storage) && events.size() == 1) {
      AddAt(previous, bytes);  // a single run keeps no state
    } else {
      nodes_[previous].ending_bytes -= bytes;
    }
  }
  if (touch.writes && !event.starts &&
      problem_.capabilities.duplicate_outputs) {
    nodes_[node].own_bytes += bytes;
    AddAt(node, bytes);
  }
  clashes_ -= IsBad(events, at);
  events.insert(events.begin() + at, event);
  clashes_ += IsBad(events, at);
  clashes_ += IsBad(events, at + 1);
}

void ExecList::RemoveEvent(const Touch& touch, Node node) {
  std::vector<Event>& events = events_[touch.storage];
  const int64_t bytes = bytes_[touch.storage];
  const int32_t at = FirstEventFrom(touch.storage, node);
  const Event event = events[at];
  const Node previous = events[at - 1].node;
  const bool goes_on =
      at + 1 < static_cast<int32_t>(events.size()) && !events[at + 1].starts;
  if (event.starts) {
    if (goes_on) {
      AddBetween(previous, node, bytes);
      nodes_[previous].ending_bytes -= bytes;
    }
  } else if (!goes_on) {
    AddBetween(previous, node, -bytes);
    if (IsState(touch.storage) && events.size() == 2) {
      AddAt(previous, -bytes);
    } else {
      nodes_[previous].ending_bytes += bytes;
    }
  }
  clashes_ -= IsBad(events, at);
  clashes_ -= IsBad(events, at + 1);
  events.erase(events.begin() + at);
  clashes_ += IsBad(events, at);
}

// ---------------------------------------------------------------------------
// Memory in blocks

void ExecList::FindMost(int32_t rank) {
  const Block& block = blocks_[order_[rank]];
  int64_t most = kNothing;
  for (int32_t i = 0; i < block.count; ++i) {
    most = std::max(most, block.bytes[i]);
  }
  most_[rank] = most + pending_[rank];
  ticks_ += kFindTicks;
}

void ExecList::AddInBlock(int32_t rank, int32_t begin, int32_t end,
                          int64_t bytes) {
  if (begin >= end) return;
  Block& block = blocks_[order_[rank]];
  int64_t before = kNothing;
  for (int32_t i = begin; i < end; ++i) {
    before = std::max(before, block.bytes[i]);
    block.bytes[i] += bytes;
  }
  before += pending_[rank];
  if (bytes < 0 && before == most_[rank]) return FindMost(rank);
  most_[rank] = std::max(most_[rank], before + bytes);
  ticks_ += kFindTicks;
}

void ExecList::AddAt(Node node, int64_t bytes) {
  const int32_t rank = rank_[nodes_[node].block];
  AddInBlock(rank, nodes_[node].offset, nodes_[node].offset + 1, bytes);
}

void ExecList::AddBetween(Node after, Node before, int64_t bytes) {
  if (bytes == 0) return;
  const int32_t first = rank_[nodes_[after].block];
  const int32_t last = rank_[nodes_[before].block];
  if (first == last) {
    AddInBlock(first, nodes_[after].offset + 1, nodes_[before].offset, bytes);
    return;
  }
  AddInBlock(first, nodes_[after].offset + 1, blocks_[order_[first]].count,
             bytes);
  for (int32_t rank = first + 1; rank < last; ++rank) pending_[rank] += bytes;
  for (int32_t rank = first + 1; rank < last; ++rank) most_[rank] += bytes;
  AddInBlock(last, 0, nodes_[before].offset, bytes);
  ticks_ += (last - first) / 8;
}

void ExecList::Split(int32_t rank) {
  constexpr int32_t kHalf = kBlock / 2;
  const int32_t fresh = static_cast<int32_t>(blocks_.size());
  blocks_.push_back({});
  Block& low = blocks_[order_[rank]];
  Block& high = blocks_[fresh];
  for (int32_t i = kHalf; i < low.count; ++i) {
    high.nodes[i - kHalf] = low.nodes[i];
    high.bytes[i - kHalf] = low.bytes[i];
    nodes_[low.nodes[i]].block = fresh;
    nodes_[low.nodes[i]].offset = i - kHalf;
  }
  high.count = low.count - kHalf;
  low.count = kHalf;
  order_.insert(order_.begin() + rank + 1, fresh);
  pending_.insert(pending_.begin() + rank + 1, pending_[rank]);
  most_.insert(most_.begin() + rank + 1, 0);
  rank_.push_back(0);
  for (size_t r = 0; r < order_.size(); ++r) {
    rank_[order_[r]] = static_cast<int32_t>(r);
  }
  FindMost(rank);
  FindMost(rank + 1);
}

// ---------------------------------------------------------------------------
// Questions

ExecList::Node ExecList::Previous(Node node) const { return Move(node, -1); }

ExecList::Node ExecList::Move(Node node, int64_t places) const {
  int32_t rank = rank_[nodes_[node].block];
  int64_t offset = nodes_[node].offset + places;
  while (offset < 0) {
    if (rank == 0) return 0;
    offset += blocks_[order_[--rank]].count;
  }
  while (offset >= blocks_[order_[rank]].count) {
    offset -= blocks_[order_[rank]].count;
    if (++rank == static_cast<int32_t>(order_.size())) return End();
  }
  return blocks_[order_[rank]].nodes[offset];
}

int64_t ExecList::BytesAt(Node node) const {
  const NodeInfo& info = nodes_[node];
  return blocks_[info.block].bytes[info.offset] + pending_[rank_[info.block]];
}

int64_t ExecList::PeakBytes() const {
  ticks_ += static_cast<int64_t>(most_.size()) / 8;
  return *std::max_element(most_.begin(), most_.end());
}

double ExecList::BytesAbove(int64_t limit) const {
  double above = 0;
  ticks_ += static_cast<int64_t>(most_.size()) / 8;
  for (size_t rank = 0; rank < most_.size(); ++rank) {
    if (most_[rank] <= limit) continue;
    const Block& block = blocks_[order_[rank]];
    const int64_t room = limit - pending_[rank];
    for (int32_t i = 0; i < block.count; ++i) {
      above += static_cast<double>(std::max<int64_t>(0, block.bytes[i] - room));
    }
    ticks_ += block.count / 8;
  }
  return above;
}

void ExecList::Profile(std::vector<Node>& nodes,
                       std::vector<int64_t>& bytes) const {
  nodes.clear();
  bytes.clear();
  for (size_t rank = 0; rank < order_.size(); ++rank) {
    const Block& block = blocks_[order_[rank]];
    for (int32_t i = 0; i < block.count; ++i) {
      nodes.push_back(block.nodes[i]);
      bytes.push_back(block.bytes[i] + pending_[rank]);
    }
  }
}

ExecList::Node ExecList::PeakNode() const {
  const size_t rank = static_cast<size_t>(
      std::max_element(most_.begin(), most_.end()) - most_.begin());
  const Block& block = blocks_[order_[rank]];
  const int64_t* most =
      std::max_element(block.bytes, block.bytes + block.count);
  return block.nodes[most - block.bytes];
}

int64_t ExecList::MostBetween(Node after, Node before) const {
  const int32_t first = rank_[nodes_[after].block];
  const int32_t last = rank_[nodes_[before].block];
  int64_t most = 0;
  const auto look = [&](int32_t rank, int32_t begin, int32_t end) {
    const Block& block = blocks_[order_[rank]];
    for (int32_t i = begin; i < end; ++i) {
      most = std::max(most, block.bytes[i] + pending_[rank]);
    }
  };
  ticks_ += 4 + (last - first) / 8;
  if (first == last) {
    look(first, nodes_[after].offset + 1, nodes_[before].offset);
    return most;
  }
  look(first, nodes_[after].offset + 1, blocks_[order_[first]].count);
  for (int32_t rank = first + 1; rank < last; ++rank) {
    most = std::max(most, most_[rank]);
  }
  look(last, 0, nodes_[before].offset);
  return most;
}

int32_t ExecList::FirstEventFrom(StorageId s, Node node) const {
  const std::vector<Event>& events = events_[s];
  const int64_t key = Key(node);
  const auto at = std::lower_bound(events.begin(), events.end(), key,
                                   [&](const Event& event, int64_t wanted) {
                                     return Key(event.node) < wanted;
                                   });
  return static_cast<int32_t>(at - events.begin());
}

bool ExecList::IsUnread(Node rerun) const {
  const OpId o = nodes_[rerun].op;
  for (int32_t t = touch_begin_[o]; t < touch_begin_[o + 1]; ++t) {
    if (touches_[t].make == kNoValue) continue;
    const std::vector<Event>& events = events_[touches_[t].storage];
    const size_t next = FirstEventFrom(touches_[t].storage, rerun) + 1;
    if (next < events.size() && !events[next].starts) return false;
  }
  return true;
}

}  // namespace reprise::planner
