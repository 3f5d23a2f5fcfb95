// SPDX-License-Identifier: Apache-2.0
#include "tests/planner/once_oracle.h"

#include <algorithm>
#include <map>
#include <set>

namespace reprise::planner {
namespace {

// A storage and its version.
using Value = std::pair<StorageId, int>;

// Executes saved sets on one graph by the rules of once.h.
class Reading {
 public:
  Reading(const StepGraph& graph, const Capabilities& capabilities)
      : graph_(graph), caps_(capabilities), forward_(ForwardOps(graph)) {
    std::map<StorageId, int> version;
    for (const Op& op : graph.ops) {
      std::vector<Value> needs, makes;
      for (const StorageId s : op.reads) needs.push_back({s, version[s]});
      for (const StorageId s : op.writes) makes.push_back({s, version[s] = 1});
      for (const StorageId s : op.mutates) makes.push_back({s, ++version[s]});
      needs_.push_back(needs);
      makes_.push_back(makes);
    }
    last_ = version;
  }

  bool MayRunAgain(OpId o) const {
    const Op& op = graph_.ops[o];
    if (op.phase != Phase::kForward || caps_.max_runs == 1) return false;
    if (op.kind == OpKind::kSeeded) return caps_.seeded_ok;
    if (op.kind == OpKind::kCollective) return caps_.collective_ok;
    return op.kind != OpKind::kOnce;
  }

  bool MayDrop(StorageId s) const {
    const Storage& storage = graph_.storages[s];
    if (storage.pinned) return false;
    if (caps_.free_policy == FreePolicy::kProgram &&
        storage.release_op != kNoOp && storage.release_op >= forward_) {
      return false;
    }
    OpId maker = kNoOp;  // of the version that the forward leaves
    for (OpId o = 0; o < forward_; ++o) {
      for (const Value& v : makes_[o]) {
        if (v.first == s) maker = o;
      }
    }
    return maker != kNoOp && MayRunAgain(maker);
  }

  std::optional<std::vector<OpId>> Run(const std::vector<uint8_t>& saved) {
    execs_.clear();
    present_.clear();
    for (OpId o = 0; o < forward_; ++o) Exec(o);
    for (StorageId s = 0; s < graph_.storage_count(); ++s) {
      if (saved[s] == 0 && MayDrop(s)) present_.erase(s);
    }
    for (OpId o = forward_; o < graph_.op_count(); ++o) {
      for (const Value& v : needs_[o]) {
        if (!IsThere(v) && !Restore(v, o)) return std::nullopt;
      }
      Exec(o);
    }
    for (const StorageId s : graph_.required) {
      if (!IsThere({s, last_[s]})) return std::nullopt;
    }
    while (TakeOutOne()) {
    }
    return execs_;
  }

 private:
  bool IsThere(const Value& v) const {
    const auto it = present_.find(v.first);
    return it != present_.end() && it->second == v.second;
  }
  void Exec(OpId o) {
    execs_.push_back(o);
    for (const Value& v : makes_[o]) present_[v.first] = v.second;
  }

  // Recomputes what is missing of what an op needs, and of what that needs.
  bool Restore(const Value& v, OpId for_op) {
    if (!MayDrop(v.first)) return false;
    std::set<OpId> ops;
    std::vector<Value> open;
    for (const Value& u : needs_[for_op]) {
      if (Maker(u) < forward_) open.push_back(u);
    }
    while (!open.empty()) {
      const Value u = open.back();
      open.pop_back();
      if (IsThere(u)) continue;
      const OpId maker = Maker(u);
      if (maker >= forward_ || !MayRunAgain(maker)) return false;
      if (!ops.insert(maker).second) continue;
      for (const Value& input : needs_[maker]) open.push_back(input);
    }
    for (const OpId o : ops) Exec(o);
    return IsThere(v);
  }

  OpId Maker(const Value& v) const {
    for (OpId o = 0; o < graph_.op_count(); ++o) {
      if (std::count(makes_[o].begin(), makes_[o].end(), v) != 0) return o;
    }
    return kNoOp;
  }

  // Removes one re-run whose outputs nobody reads. Returns false if there is
  // none.
  bool TakeOutOne() {
    for (size_t i = execs_.size(); i-- > 0;) {
      const OpId o = execs_[i];
      if (std::find(execs_.begin(), execs_.begin() + i, o) ==
          execs_.begin() + i) {
        continue;  // its first run
      }
      bool read = false;
      for (const Value& v : makes_[o]) read = read || IsRead(v, i);
      if (read) continue;
      execs_.erase(execs_.begin() + i);
      return true;
    }
    return false;
  }
  bool IsRead(const Value& v, size_t after) const {
    for (size_t i = after + 1; i < execs_.size(); ++i) {
      const auto& needs = needs_[execs_[i]];
      const auto& makes = makes_[execs_[i]];
      if (std::count(needs.begin(), needs.end(), v) != 0) return true;
      if (std::count(makes.begin(), makes.end(), v) != 0) return false;
    }
    return std::count(graph_.required.begin(), graph_.required.end(),
                      v.first) != 0 &&
           last_.at(v.first) == v.second;
  }

  const StepGraph& graph_;
  const Capabilities caps_;
  const OpId forward_;
  std::vector<std::vector<Value>> needs_, makes_;  // by op
  std::map<StorageId, int> last_;
  std::map<StorageId, int> present_;
  std::vector<OpId> execs_;
};

}  // namespace

int ForwardOps(const StepGraph& graph) {
  int count = 0;
  while (count < graph.op_count() &&
         graph.ops[count].phase != Phase::kBackward) {
    ++count;
  }
  return count;
}

std::optional<std::vector<OpId>> ExecsOf(const StepGraph& graph,
                                         const Capabilities& capabilities,
                                         const std::vector<uint8_t>& saved) {
  return Reading(graph, capabilities).Run(saved);
}

std::optional<int64_t> BestSavedNs(const StepGraph& graph,
                                   const Capabilities& capabilities,
                                   int64_t budget_bytes) {
  std::optional<int64_t> best;
  Reading reading(graph, capabilities);
  std::vector<StorageId> free;
  for (StorageId s = 0; s < graph.storage_count(); ++s) {
    if (reading.MayDrop(s)) free.push_back(s);
  }
  for (unsigned dropped = 0; dropped < 1u << free.size(); ++dropped) {
    std::vector<uint8_t> saved(graph.storage_count(), 1);
    for (size_t i = 0; i < free.size(); ++i) {
      saved[free[i]] = (dropped >> i & 1) == 0;
    }
    const auto execs = reading.Run(saved);
    if (!execs.has_value()) continue;
    const auto evaluation =
        Evaluate(graph, WithFrees(graph, *execs, capabilities.free_policy),
                 capabilities);
    if (evaluation.ok() && evaluation->peak_bytes <= budget_bytes &&
        (!best.has_value() || evaluation->time_ns < *best)) {
      best = evaluation->time_ns;
    }
  }
  return best;
}

}  // namespace reprise::planner
