// SPDX-License-Identifier: Apache-2.0
//
// The changes of a FreeOrder, and how they are taken back.
#include <algorithm>

#include "planner/free_order.h"

namespace reprise::planner {

void FreeOrder::Begin() {
  // What the last change erased is free now that it is final.
  unused_.insert(unused_.end(), erased_.begin(), erased_.end());
  erased_.clear();
  old_seq_ = seq_;
  old_load_ = load_;
  old_unused_ = unused_;
  old_instances_ = op_.size();
  touched_count_ = 0;
  ++touch_epoch_;
  Unmark();
}

// Remembers the runs of an op before they change.
void FreeOrder::Touch(OpId op) {
  if (touch_[op] == touch_epoch_) return;
  touch_[op] = touch_epoch_;
  if (touched_count_ == touched_.size()) touched_.emplace_back();
  touched_[touched_count_].op = op;
  touched_[touched_count_].runs = runs_of_[op];
  ++touched_count_;
}

void FreeOrder::Undo() {
  seq_ = old_seq_;
  load_ = old_load_;
  unused_ = old_unused_;
  for (size_t i = 0; i < touched_count_; ++i) {
    runs_of_[touched_[i].op] = touched_[i].runs;
  }
  touched_count_ = 0;
  op_.resize(old_instances_);
  pos_.resize(old_instances_);
  erased_.clear();
  Renumber(0, size());
}

// The lives of a storage with these numbers are about to change, or may be.
void FreeOrder::Mark(StorageId s, int32_t first, int32_t last) {
  first = std::max(first, 0);
  if (mark_[s] < marked_begin_ || marked_.empty()) {
    mark_[s] = marked_begin_ + static_cast<int64_t>(marked_.size());
    marked_.push_back({s, first, last});
    return;
  }
  Marked& marked = marked_[mark_[s] - marked_begin_];
  marked.first = std::min(marked.first, first);
  marked.last = std::max(marked.last, last);
}

void FreeOrder::Unmark() {
  marked_begin_ += static_cast<int64_t>(marked_.size());
  marked_.clear();
}

void FreeOrder::ApplyMarked(int sign) {
  for (const Marked& marked : marked_) {
    const int32_t bytes = sign * size_[marked.storage];
    const int32_t count =
        static_cast<int32_t>(runs_of_[maker_[marked.storage]].size());
    for (int32_t number = marked.first; number <= marked.last && number < count;
         ++number) {
      const Life life = LifeOf(marked.storage, number);
      int32_t* load = load_.data();
      for (int32_t at = life.begin; at <= life.end; ++at) load[at] += bytes;
      ticks_ += 1 + (life.end - life.begin) / 8;
    }
  }
}

// What lives that are not marked keep between the exec at `at` and the one
// before it, static memory included.
int32_t FreeOrder::Across(int32_t at) const {
  const auto is_marked = [&](StorageId s, int32_t number) {
    if (mark_[s] < marked_begin_) return false;
    const Marked& marked = marked_[mark_[s] - marked_begin_];
    return marked.first <= number && number <= marked.last;
  };
  if (at < size()) {
    const OpId o = OpAt(at);
    int32_t bytes = load_[at] - workspace_[o];
    const int32_t number = NumberOf(seq_[at]);
    for (const StorageId s : problem_.Writes(o)) {
      if (!is_marked(s, number)) bytes -= size_[s];
    }
    return bytes;
  }
  int32_t bytes = static_;
  for (const ValueId v : problem_.end_need) {
    const StorageId s = problem_.versions.storage[v];
    const int32_t last = static_cast<int32_t>(runs_of_[maker_[s]].size()) - 1;
    if (!is_marked(s, last)) bytes += size_[s];
  }
  return bytes;
}

int32_t FreeOrder::NumberOf(int32_t instance) const {
  const std::vector<int32_t>& runs = runs_of_[op_[instance]];
  return static_cast<int32_t>(std::find(runs.begin(), runs.end(), instance) -
                              runs.begin());
}

void FreeOrder::Renumber(int32_t from, int32_t to) {
  for (int32_t at = from; at < to; ++at) pos_[seq_[at]] = at;
}

bool FreeOrder::Shift(int32_t from, int32_t to) {
  const int32_t instance = seq_[from];
  const OpId o = op_[instance];
  const std::vector<int32_t>& runs = runs_of_[o];
  const bool first = runs.front() == instance;
  if (from == to) return false;
  // Not past another exec of the op, nor, for the first one, past a reader or
  // the first exec of a maker.
  const auto place = std::find(runs.begin(), runs.end(), instance);
  if (to < from) {
    if (!first && pos_[*(place - 1)] >= to) return false;
    for (int32_t i = read_begin_[o]; first && i < read_begin_[o + 1]; ++i) {
      if (pos_[runs_of_[maker_[reads_[i]]].front()] >= to) return false;
    }
  } else {
    if (place + 1 != runs.end() && pos_[*(place + 1)] <= to) return false;
    if (first) {
      for (const StorageId s : problem_.Writes(o)) {
        for (int32_t i = reader_begin_[s]; i < reader_begin_[s + 1]; ++i) {
          const int32_t reader = runs_of_[readers_[i]].front();
          if (pos_[reader] <= to) return false;
        }
      }
    }
  }
  Begin();
  // Readers on the way change between its life and the one before; what it
  // reads may be of another life in the new place.
  const int32_t number = static_cast<int32_t>(place - runs.begin());
  for (const StorageId s : problem_.Writes(o)) Mark(s, number - 1, number);
  for (int32_t i = read_begin_[o]; i < read_begin_[o + 1]; ++i) {
    const OpId m = maker_[reads_[i]];
    Mark(reads_[i], SeenBy(m, std::min(from, to)),
         SeenBy(m, std::max(from, to) + 1));
  }
  ApplyMarked(-1);
  if (to > from) {
    const int32_t across = Across(to + 1);
    std::copy(seq_.begin() + from + 1, seq_.begin() + to + 1,
              seq_.begin() + from);
    std::copy(load_.begin() + from + 1, load_.begin() + to + 1,
              load_.begin() + from);
    load_[to] = across + workspace_[o];
    seq_[to] = instance;
    Renumber(from, to + 1);
  } else {
    const int32_t across = Across(to);
    std::copy_backward(seq_.begin() + to, seq_.begin() + from,
                       seq_.begin() + from + 1);
    std::copy_backward(load_.begin() + to, load_.begin() + from,
                       load_.begin() + from + 1);
    load_[to] = across + workspace_[o];
    seq_[to] = instance;
    Renumber(to, from + 1);
  }
  ApplyMarked(1);
  ticks_ += size() / 8;
  return true;
}

void FreeOrder::Insert(int32_t at, const std::vector<OpId>& ops) {
  Unmark();
  for (const OpId o : ops) {
    const int32_t seen = SeenBy(o, at);
    for (const StorageId s : problem_.Writes(o)) Mark(s, seen, seen);
    for (int32_t i = read_begin_[o]; i < read_begin_[o + 1]; ++i) {
      const int32_t read = SeenBy(maker_[reads_[i]], at);
      Mark(reads_[i], read, read);
    }
  }
  ApplyMarked(-1);
  const int32_t across = Across(at);
  const int32_t count = static_cast<int32_t>(ops.size());
  seq_.insert(seq_.begin() + at, count, 0);
  load_.insert(load_.begin() + at, count, 0);
  for (int32_t i = 0; i < count; ++i) {
    const OpId o = ops[i];
    Touch(o);
    int32_t instance = 0;
    if (unused_.empty()) {
      instance = static_cast<int32_t>(op_.size());
      op_.push_back(o);
      pos_.push_back(0);
    } else {
      instance = unused_.back();
      unused_.pop_back();
      op_[instance] = o;
    }
    seq_[at + i] = instance;
    load_[at + i] = across + workspace_[o];
    std::vector<int32_t>& runs = runs_of_[o];
    // pos_ still counts without what is inserted here.
    auto place = runs.end();
    while (place != runs.begin() && pos_[*(place - 1)] >= at) --place;
    if (place != runs.begin()) suspects_.push_back(*(place - 1));
    runs.insert(place, instance);
    // So that a second exec of the same op finds its place; ops are distinct.
    pos_[instance] = at;
  }
  Renumber(at, size());
  for (const OpId o : ops) {
    const int32_t number = SeenBy(o, at + count);
    for (const StorageId s : problem_.Writes(o)) Mark(s, number - 1, number);
  }
  ApplyMarked(1);
}

void FreeOrder::Erase(int32_t at) {
  const int32_t instance = seq_[at];
  const OpId o = op_[instance];
  Unmark();
  const int32_t number = NumberOf(instance);
  for (const StorageId s : problem_.Writes(o)) {
    Mark(s, number - 1, std::max(number, 1));
  }
  for (int32_t i = read_begin_[o]; i < read_begin_[o + 1]; ++i) {
    const int32_t read = SeenBy(maker_[reads_[i]], at);
    Mark(reads_[i], read, read);
  }
  ApplyMarked(-1);
  Touch(o);
  std::vector<int32_t>& runs = runs_of_[o];
  runs.erase(runs.begin() + number);
  for (const StorageId s : problem_.Writes(o)) {
    marked_[mark_[s] - marked_begin_].last = std::max(number - 1, 0);
  }
  seq_.erase(seq_.begin() + at);
  load_.erase(load_.begin() + at);
  erased_.push_back(instance);
  Renumber(at, size());
  ApplyMarked(1);
  for (int32_t i = read_begin_[o]; i < read_begin_[o + 1]; ++i) {
    const OpId m = maker_[reads_[i]];
    const int32_t seen = SeenBy(m, at);
    if (seen >= 0) suspects_.push_back(runs_of_[m][seen]);
  }
}

void FreeOrder::DropDead() {
  while (!suspects_.empty()) {
    const int32_t instance = suspects_.back();
    suspects_.pop_back();
    const OpId o = op_[instance];
    const std::vector<int32_t>& runs = runs_of_[o];
    if (std::find(runs.begin(), runs.end(), instance) == runs.end()) continue;
    if (IsDead(instance)) Erase(pos_[instance]);
  }
}

// Appends to the chain what makes the outputs of `op` at `at`.
bool FreeOrder::Plan(OpId op, int32_t at, int extend_percent, int most_chain,
                     Random& random) {
  // Depth-first with the call stack: the chain's limit bounds it.
  if (static_cast<int>(chain_.size()) >= most_chain || may_rerun_[op] == 0) {
    return false;
  }
  const int most_runs = problem_.capabilities.max_runs;
  if (most_runs > 0 && static_cast<int>(runs_of_[op].size()) >= most_runs) {
    return false;
  }
  planned_[op] = plan_epoch_;
  chain_.push_back(kNoOp);  // counts what is open against the limit
  for (int32_t i = read_begin_[op]; i < read_begin_[op + 1]; ++i) {
    const StorageId s = reads_[i];
    const OpId m = maker_[s];
    if (planned_[m] == plan_epoch_) continue;
    const int32_t seen = SeenBy(m, at);
    if (seen < 0) return false;
    if (LifeOf(s, seen).end >= at || size_[s] == 0) continue;
    if (may_rerun_[m] == 0 || random.Percent(extend_percent)) {
      planned_[m] = plan_epoch_;
      continue;
    }
    if (!Plan(m, at, extend_percent, most_chain, random)) return false;
  }
  chain_.push_back(op);
  return true;
}

bool FreeOrder::Remake(int32_t at, int extend_percent, int most_chain,
                       Random& random) {
  // A storage that is alive and idle at `at`.
  constexpr int kTries = 24;
  for (int i = 0; i < kTries; ++i) {
    if (at < 1) return false;
    const OpId o = OpAt(random.Below(at));
    if (may_rerun_[o] == 0) continue;
    const auto writes = problem_.Writes(o);
    if (writes.empty()) continue;
    const StorageId s = writes[random.Below(writes.size())];
    const int32_t seen = SeenBy(o, at);
    if (LifeOf(s, seen).end <= at || IsUsedAt(s, at)) continue;
    const int32_t use = NextUse(s, at);
    if (use >= size()) continue;
    // In front of the reader, or where memory is lowest on the way to it.
    int32_t place = use;
    if (random.Percent(50)) {
      const auto lowest =
          std::min_element(load_.begin() + at + 1, load_.begin() + use + 1);
      place = static_cast<int32_t>(lowest - load_.begin());
      ticks_ += (use - at) / 8;
    }
    chain_.clear();
    ++plan_epoch_;
    if (!Plan(o, place, extend_percent, most_chain, random)) return false;
    chain_.erase(std::remove(chain_.begin(), chain_.end(), kNoOp),
                 chain_.end());
    // Depth-first, or in the order of the list so far: a sweep, which needs
    // less memory where the chain is long.
    if (random.Percent(50)) {
      std::sort(chain_.begin(), chain_.end(), [this](OpId a, OpId b) {
        return pos_[runs_of_[a].front()] < pos_[runs_of_[b].front()];
      });
    }
    Begin();
    suspects_.clear();
    Insert(place, chain_);
    DropDead();
    ticks_ += size() / 4;
    return true;
  }
  return false;
}

bool FreeOrder::Remove(int32_t at) {
  const int32_t instance = seq_[at];
  const OpId o = op_[instance];
  const std::vector<int32_t>& runs = runs_of_[o];
  if (runs.size() < 2) return false;
  if (runs.front() == instance) {
    // Its readers must all come after the next exec.
    for (const StorageId s : problem_.Writes(o)) {
      if (NextUse(s, at) < pos_[runs[1]]) return false;
    }
  }
  Begin();
  suspects_.clear();
  Erase(at);
  DropDead();
  ticks_ += size() / 4;
  return true;
}

}  // namespace reprise::planner
