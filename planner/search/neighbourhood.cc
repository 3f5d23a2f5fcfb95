// SPDX-License-Identifier: Apache-2.0
#include "planner/search/neighbourhood.h"

#include <algorithm>

#include "planner/model/unread.h"

namespace reprise::planner {

bool Neighbourhood::MayFree(const Problem& problem, OpId o) {
  return problem.rules.may_rerun[o] != 0 && !problem.versions.Make(o).empty();
}

Neighbourhood::Neighbourhood(const Problem& problem, const ExecList& list,
                             std::span<const OpId> ops, int64_t budget_bytes)
    : problem_(problem),
      list_(list),
      budget_bytes_(budget_bytes),
      is_free_(problem.op_count, 0),
      index_(problem.op_count, -1) {
  int64_t largest = 1;
  for (const int64_t bytes : problem.bytes) largest = std::max(largest, bytes);
  byte_scale_ = MipScale(largest);
  cost_scale_ = MipScale(problem.base.time_ns) * (1 << kMipCostBits);
  for (const OpId o : ops) {
    if (!MayFree(problem, o)) continue;
    is_free_[o] = 1;
    index_[o] = static_cast<int32_t>(ops_.size());
    ops_.push_back({.op = o});
  }
  FindSlots();
  FindValues();
  FindTouches();
  FindRoom();
  AddColumns();
  AddRows();
  AddMemoryRows();
}

// ---------------------------------------------------------------------------
// The list without the free re-runs

void Neighbourhood::FindSlots() {
  slot_of_.assign(problem_.op_count + 1, -1);
  for (Node node = 0;; node = list_.Move(node, 1)) {
    if (node >= static_cast<Node>(slot_of_.size())) {
      slot_of_.resize(node + 1, -1);
    }
    slot_of_[node] = static_cast<int32_t>(slots_.size());
    if (node == list_.End()) {
      slots_.push_back(node);
      return;
    }
    const OpId o = list_.OpOf(node);
    if (list_.IsRerun(node) && is_free_[o] != 0) {
      incumbent_ns_ += problem_.rules.rerun_ns[o];
      FreeOp& free = ops_[index_[o]];
      if (free.before.empty() || free.before.back() != slot_of_[node]) {
        free.before.push_back(slot_of_[node]);
      }
      continue;
    }
    if (is_free_[o] != 0) ++ops_[index_[o]].stays_count;
    slots_.push_back(node);
  }
}

// What the free ops make, and what they read: that may be kept for them longer
// or shorter than it is. With all versions of its storage.
void Neighbourhood::FindValues() {
  const Versions& versions = problem_.versions;
  value_of_.assign(versions.value_count(), -1);
  const auto add = [&](ValueId of) {
    const StorageId s = versions.storage[of];
    if (value_of_[of] >= 0 || problem_.bytes[s] == 0) return;
    for (ValueId v = versions.first_value[s]; v <= versions.Last(s); ++v) {
      value_of_[v] = static_cast<int32_t>(values_.size());
      values_.push_back({.id = v, .bytes = problem_.bytes[s]});
    }
  };
  for (const FreeOp& free : ops_) {
    for (const ValueId v : versions.Make(free.op)) add(v);
    for (const ValueId u : versions.Need(free.op)) {
      add(u);
      if (value_of_[u] >= 0) values_[value_of_[u]].readers.push_back(free.op);
    }
  }
  for (Value& value : values_) {
    const StorageId s = versions.storage[value.id];
    for (ValueId v = versions.first_value[s]; v <= versions.Last(s); ++v) {
      if (v == value.id || is_free_[versions.maker[v]] == 0) continue;
      value.others.push_back(versions.maker[v]);
    }
  }
}

bool Neighbourhood::MayStandBefore(OpId o, int32_t slot) const {
  return slot > slot_of_[o] &&
         problem_.rules.may_trigger[list_.LeadsTo(slots_[slot])] != 0;
}

void Neighbourhood::FindTouches() {
  // By the fixed execs.
  for (Value& value : values_) {
    const StorageId s = problem_.versions.storage[value.id];
    for (const ExecList::Event& event : list_.Events(s)) {
      const OpId o = list_.OpOf(event.node);
      if (list_.IsRerun(event.node) && is_free_[o] != 0) continue;
      const int32_t slot = slot_of_[event.node];
      if (value.touches.empty() || value.touches.back().slot != slot) {
        value.touches.push_back({.slot = slot});
      }
      Touch& touch = value.touches.back();
      touch.reads |= event.need == value.id;
      touch.makes |= event.make == value.id;
      touch.destroys |= event.make != kNoValue && event.make != value.id;
    }
  }
  // A free op may run before whatever reads what it makes, and where it does.
  for (size_t i = ops_.size(); i-- > 0;) {
    FreeOp& free = ops_[i];
    std::vector<int32_t> before = std::move(free.before);
    for (const ValueId v : problem_.versions.Make(free.op)) {
      if (value_of_[v] < 0) continue;
      const Value& value = values_[value_of_[v]];
      for (const Touch& touch : value.touches) {
        if (touch.reads) before.push_back(touch.slot);
      }
      for (const OpId reader : value.readers) {
        const std::vector<int32_t>& slots = ops_[index_[reader]].before;
        before.insert(before.end(), slots.begin(), slots.end());
      }
    }
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    free.before.clear();
    for (const int32_t slot : before) {
      if (MayStandBefore(free.op, slot)) free.before.push_back(slot);
    }
  }
  for (Value& value : values_) {
    const auto add = [&](OpId o) {
      for (const int32_t slot : ops_[index_[o]].before) {
        value.touches.push_back({.slot = slot});
      }
    };
    const OpId maker = problem_.versions.maker[value.id];
    if (is_free_[maker] != 0) add(maker);
    for (const OpId reader : value.readers) add(reader);
    for (const OpId other : value.others) add(other);
    std::stable_sort(
        value.touches.begin(), value.touches.end(),
        [](const Touch& a, const Touch& b) { return a.slot < b.slot; });
    // Those by fixed execs were first, and stay.
    value.touches.erase(std::unique(value.touches.begin(), value.touches.end(),
                                    [](const Touch& a, const Touch& b) {
                                      return a.slot == b.slot;
                                    }),
                        value.touches.end());
    // It begins where it is made first.
    const auto begin =
        std::find_if(value.touches.begin(), value.touches.end(),
                     [](const Touch& touch) { return touch.makes; });
    value.touches.erase(value.touches.begin(), begin);
  }
}

// Bytes at each slot besides the values of the neighbourhood.
void Neighbourhood::FindRoom() {
  const int32_t count = static_cast<int32_t>(slots_.size());
  std::vector<int64_t> change(count + 1, 0);
  for (const Value& value : values_) {
    if (!problem_.versions.IsFirst(value.id)) continue;  // one of a storage
    const auto& events = list_.Events(problem_.versions.storage[value.id]);
    for (size_t i = 0; i < events.size();) {
      size_t last = i;
      while (last + 1 < events.size() && !events[last + 1].starts) ++last;
      const auto is_slot = [&](Node node) {
        return slots_[slot_of_[node]] == node;
      };
      change[slot_of_[events[i].node]] += value.bytes;
      const Node end = events[last].node;
      change[slot_of_[end] + (is_slot(end) ? 1 : 0)] -= value.bytes;
      i = last + 1;
    }
  }
  other_at_.resize(count);
  other_before_.resize(count);
  int64_t own = 0;
  for (int32_t p = 0; p < count; ++p) {
    own += change[p];
    other_at_[p] = list_.BytesAt(slots_[p]) - own;
    other_before_[p] = other_at_[p];
    const OpId o = list_.OpOf(slots_[p]);
    if (o == problem_.op_count) continue;
    other_before_[p] -= problem_.workspace[o];
    for (const StorageId s : problem_.Writes(o)) {
      if (value_of_[problem_.versions.first_value[s]] >= 0) continue;
      const auto& events = list_.Events(s);
      const auto& event = events[list_.FirstEventFrom(s, slots_[p])];
      if (event.starts) other_before_[p] -= problem_.bytes[s];
    }
  }
}

// ---------------------------------------------------------------------------
// Solutions

std::vector<OpId> Neighbourhood::ExecsOf(
    const std::vector<double>& solution) const {
  std::vector<std::pair<int32_t, OpId>> reruns;
  for (const FreeOp& free : ops_) {
    for (size_t i = 0; i < free.before.size(); ++i) {
      if (solution[free.column[i]] > 0.5) {
        reruns.emplace_back(free.before[i], free.op);
      }
    }
  }
  std::sort(reruns.begin(), reruns.end());
  std::vector<OpId> execs;
  size_t i = 0;
  for (int32_t p = 0; p < static_cast<int32_t>(slots_.size()); ++p) {
    for (; i < reruns.size() && reruns[i].first == p; ++i) {
      execs.push_back(reruns[i].second);
    }
    if (slots_[p] != list_.End()) execs.push_back(list_.OpOf(slots_[p]));
  }
  return execs;
}

// What CBC looks at for one iteration that it reports, probing and its own
// heuristics included, in ops and arcs: measured.
int64_t Neighbourhood::Ticks(const MipAnswer& answer) const {
  return 600 * static_cast<int64_t>(program_.column.size()) +
         answer.iterations * (10'000 + 10 * int64_t{program_.row_count()});
}

NeighbourhoodResult Neighbourhood::Solve(const NeighbourhoodLimits& limits) {
  NeighbourhoodResult result;
  for (int round = 1; round <= limits.most_rounds; ++round) {
    result.columns = program_.column_count();
    result.rows = program_.row_count();
    if (result.columns == 0 || result.columns > limits.most_columns) {
      return result;
    }
    const MipOptions options{
        .most_nodes = limits.most_nodes,
        .cutoff = static_cast<double>(incumbent_ns_) * cost_scale_,
        .should_stop = limits.should_stop};
    const MipAnswer answer = SolveMip(program_, options);
    result.ticks += Ticks(answer);
    result.finished = answer.finished();
    if (!answer.has_solution) return result;
    std::vector<OpId> execs = ExecsOf(answer.solution);
    ExecList list(problem_);
    list.Assign(execs);
    if (list.valid() && list.PeakBytes() <= budget_bytes_) {
      if (list.time_ns() < list_.time_ns()) {
        result.execs = WithoutUnread(problem_, execs);
      }
      return result;
    }
    result.finished = false;
    if (!list.valid() || AddBurstRows(answer.solution) == 0) return result;
  }
  return result;
}

}  // namespace reprise::planner
