// SPDX-License-Identifier: Apache-2.0
#include "tests/planner/region_oracle.h"

#include <algorithm>
#include <map>
#include <set>

namespace reprise::planner {
namespace {

// A storage and its version.
using Value = std::pair<StorageId, int>;

bool Holds(const Region& region, OpId op) {
  return region.begin <= op && op < region.end;
}
bool Holds(const Region& outer, const Region& inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

// Executes region plans on one graph by the rules of regions.h.
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

  // Returns the forward ops that read or write a storage.
  std::vector<OpId> Touches(StorageId s) const {
    std::vector<OpId> ops;
    for (OpId o = 0; o < forward_; ++o) {
      for (const Value& v : needs_[o]) {
        if (v.first == s) ops.push_back(o);
      }
      for (const Value& v : makes_[o]) {
        if (v.first == s) ops.push_back(o);
      }
    }
    return ops;
  }

  // Returns the regions that contain every op that touches a storage, the
  // outermost first.
  std::vector<Region> Around(StorageId s,
                             const std::vector<Region>& regions) const {
    const std::vector<OpId> ops = Touches(s);
    std::vector<Region> around;
    if (ops.empty() || !MayDrop(s)) return around;
    for (const Region& region : regions) {
      if (std::all_of(ops.begin(), ops.end(),
                      [&](OpId o) { return Holds(region, o); })) {
        around.push_back(region);
      }
    }
    std::sort(around.begin(), around.end(), [](const auto& a, const auto& b) {
      return a.end - a.begin > b.end - b.begin;
    });
    return around;
  }

  bool MayDrop(StorageId s) const {
    const Storage& storage = graph_.storages[s];
    if (storage.pinned) return false;
    if (caps_.free_policy == FreePolicy::kProgram &&
        storage.release_op != kNoOp && storage.release_op >= forward_) {
      return false;
    }
    OpId maker = kNoOp;  // of the version that the forward leaves
    for (const OpId o : Touches(s)) {
      for (const Value& v : makes_[o]) {
        if (v.first == s) maker = o;
      }
    }
    return maker != kNoOp && MayRunAgain(maker);
  }

  std::optional<std::vector<OpId>> Run(const RegionPlan& plan) {
    execs_.clear();
    present_.clear();
    left_.clear();
    done_.clear();
    for (OpId o = 0; o < forward_; ++o) Exec(o);
    for (const auto& [s, version] : present_) left_[s] = version;
    for (StorageId s = 0; s < graph_.storage_count(); ++s) {
      if (Level(s, plan) > 0) present_.erase(s);
    }
    for (OpId o = forward_; o < graph_.op_count(); ++o) {
      for (const Value& v : needs_[o]) {
        if (!IsThere(v) && !Restore(v, o, plan)) return std::nullopt;
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
  int Level(StorageId s, const RegionPlan& plan) const {
    return std::min(plan.levels[s],
                    static_cast<int>(Around(s, plan.regions).size()));
  }
  bool IsThere(const Value& v) const {
    const auto it = present_.find(v.first);
    return it != present_.end() && it->second == v.second;
  }
  void Exec(OpId o) {
    execs_.push_back(o);
    for (const Value& v : makes_[o]) present_[v.first] = v.second;
  }

  bool Restore(const Value& v, OpId for_op, const RegionPlan& plan) {
    const std::vector<Region> around = Around(v.first, plan.regions);
    if (around.empty()) return false;
    int level = Level(v.first, plan);
    if (level == 0) level = static_cast<int>(around.size());
    for (int depth = 0; depth < level && !IsThere(v); ++depth) {
      const Region& region = around[depth];
      const bool innermost = std::none_of(
          plan.regions.begin(), plan.regions.end(), [&](const Region& other) {
            return !(other == region) && Holds(region, other);
          });
      if (caps_.lazy_region && innermost) {
        if (!RunAgain(region, needs_[for_op])) return false;
        continue;
      }
      if (!done_.insert({region.begin, region.end}).second) continue;
      std::vector<Value> kept;
      std::vector<StorageId> gone;
      for (StorageId s = 0; s < graph_.storage_count(); ++s) {
        const std::vector<Region> home = Around(s, plan.regions);
        if (home.empty() || !Holds(region, home.back())) continue;
        if (Level(s, plan) <= depth + 1) {
          kept.push_back({s, left_[s]});
        } else {
          gone.push_back(s);
        }
      }
      if (!RunAgain(region, kept)) return false;
      for (const StorageId s : gone) present_.erase(s);
    }
    return IsThere(v);
  }

  // Recomputes `wanted` as far as their makers are inside the region.
  bool RunAgain(const Region& region, const std::vector<Value>& wanted) {
    std::set<OpId> ops;
    std::vector<Value> open;
    for (const Value& v : wanted) {
      if (IsThere(v)) continue;
      const OpId maker = Maker(v);
      if (maker < region.begin || maker >= region.end) continue;
      open.push_back(v);
    }
    while (!open.empty()) {
      const Value v = open.back();
      open.pop_back();
      if (IsThere(v)) continue;
      const OpId maker = Maker(v);
      if (!Holds(region, maker) || !MayRunAgain(maker)) return false;
      if (!ops.insert(maker).second) continue;
      for (const Value& u : needs_[maker]) open.push_back(u);
    }
    for (const OpId o : ops) Exec(o);
    return true;
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
  std::map<StorageId, int> present_, left_;  // left_: after the forward
  std::set<std::pair<OpId, OpId>> done_;     // regions that ran again
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
                                         const RegionPlan& plan) {
  return Reading(graph, capabilities).Run(plan);
}

std::vector<std::vector<Region>> AllRegions(int forward_ops,
                                            const Capabilities& capabilities) {
  if (capabilities.execution == Execution::kOnce) return {{{0, forward_ops}}};
  std::vector<Region> stretches;
  for (OpId begin = 0; begin < forward_ops; ++begin) {
    for (OpId end = forward_ops; end > begin; --end) {
      stretches.push_back({begin, end});
    }
  }
  std::vector<std::vector<Region>> families;
  for (unsigned chosen = 0; chosen < 1u << stretches.size(); ++chosen) {
    std::vector<Region> family;
    bool nests = true;
    for (size_t i = 0; i < stretches.size() && nests; ++i) {
      if ((chosen >> i & 1) == 0) continue;
      int depth = 1;
      for (const Region& other : family) {
        const bool apart = other.end <= stretches[i].begin;
        if (!apart && !Holds(other, stretches[i])) nests = false;
        depth += !apart;
      }
      if (capabilities.max_runs > 0 && depth >= capabilities.max_runs) {
        nests = false;
      }
      family.push_back(stretches[i]);
    }
    if (nests) families.push_back(family);
  }
  return families;
}

std::optional<RegionAnswer> BestRegions(const StepGraph& graph,
                                        const Capabilities& capabilities,
                                        int64_t budget_bytes) {
  std::optional<RegionAnswer> best;
  std::set<std::vector<OpId>> seen;
  Reading reading(graph, capabilities);
  for (const auto& regions : AllRegions(ForwardOps(graph), capabilities)) {
    RegionPlan plan{.regions = regions,
                    .levels = std::vector<int32_t>(graph.storage_count(), 0)};
    std::vector<int> most;
    for (StorageId s = 0; s < graph.storage_count(); ++s) {
      most.push_back(static_cast<int>(reading.Around(s, regions).size()));
    }
    // Tries all levels, counting up like the digits of a number.
    for (bool more = true; more;) {
      const auto execs = reading.Run(plan);
      if (execs.has_value() && seen.insert(*execs).second) {
        const auto evaluation =
            Evaluate(graph, WithFrees(graph, *execs, capabilities.free_policy),
                     capabilities);
        if (evaluation.ok() && evaluation->peak_bytes <= budget_bytes &&
            (!best.has_value() || evaluation->time_ns < best->time_ns)) {
          best = {.time_ns = evaluation->time_ns, .plan = plan};
        }
      }
      more = false;
      for (StorageId s = 0; s < graph.storage_count() && !more; ++s) {
        plan.levels[s] = plan.levels[s] < most[s] ? plan.levels[s] + 1 : 0;
        more = plan.levels[s] > 0;
      }
    }
  }
  return best;
}

}  // namespace reprise::planner
