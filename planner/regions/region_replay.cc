// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <vector>

#include "planner/model/unread.h"
#include "planner/regions/region_tree.h"
#include "planner/regions/regions.h"

namespace reprise::planner {
namespace {

// Walks over the step and runs regions again as they are needed.
class Replay {
 public:
  Replay(const Problem& problem, const RegionPlan& plan)
      : problem_(problem),
        plan_(plan),
        tree_(MakeTree(plan.regions, problem.first_backward)),
        home_(Homes(problem, tree_)),
        present_(problem.bytes.size(), kNoValue),
        last_(problem.bytes.size(), kNoValue),
        wanted_(problem.op_count, 0),
        replayed_(plan.regions.size(), 0),
        at_home_(plan.regions.size()) {
    for (StorageId s = 0; s < static_cast<StorageId>(home_.size()); ++s) {
      if (home_[s] >= 0) at_home_[home_[s]].push_back(s);
    }
  }

  // Returns the execs of the step, or nothing if the plan cannot be run.
  std::vector<OpId> Run() {
    for (OpId o = 0; o < problem_.first_backward; ++o) Exec(o);
    last_ = present_;
    for (StorageId s = 0; s < static_cast<StorageId>(home_.size()); ++s) {
      if (Level(s) > 0) present_[s] = kNoValue;
    }
    for (OpId o = problem_.first_backward; o < problem_.op_count; ++o) {
      const auto need = problem_.versions.Need(o);
      for (const ValueId v : need) {
        if (IsMissing(v) && !Restore(v, need)) return {};
      }
      Exec(o);
    }
    for (const ValueId v : problem_.end_need) {
      if (IsMissing(v)) return {};
    }
    return WithoutUnread(problem_, execs_);
  }

 private:
  // Returns whether a storage does not hold this value.
  bool IsMissing(ValueId v) const {
    return present_[problem_.versions.storage[v]] != v;
  }

  // Returns the effective level of a storage: at most the depth of its home,
  // and 0 without one.
  int32_t Level(StorageId s) const {
    return home_[s] < 0 ? 0 : std::min(plan_.levels[s], tree_.depth[home_[s]]);
  }

  void Exec(OpId o) {
    execs_.push_back(o);
    for (const ValueId v : problem_.versions.Make(o)) {
      present_[problem_.versions.storage[v]] = v;
    }
  }

  // Runs the regions around a missing value again until it is present. Returns
  // false if that is impossible.
  bool Restore(ValueId v, std::span<const ValueId> need) {
    const StorageId s = problem_.versions.storage[v];
    if (problem_.versions.maker[v] >= problem_.first_backward) return false;
    if (home_[s] < 0) return false;
    // A value that was replaced by another version is recomputed at its home.
    const int32_t level = Level(s) > 0 ? Level(s) : tree_.depth[home_[s]];
    std::vector<int32_t> around;
    for (int32_t r = home_[s]; r >= 0; r = tree_.parent[r]) around.push_back(r);
    for (int32_t depth = 1; depth <= level && IsMissing(v); ++depth) {
      const int32_t region = around[around.size() - depth];
      const bool lazy =
          problem_.capabilities.lazy_region && tree_.IsLeaf(region);
      if (!(lazy ? RunLazily(region, need) : RunWhole(region))) return false;
    }
    return !IsMissing(v);
  }

  // Recomputes those of these values that the region makes.
  bool RunLazily(int32_t region, std::span<const ValueId> need) {
    std::vector<ValueId> restored;
    for (const ValueId v : need) {
      const OpId maker = problem_.versions.maker[v];
      const Region& ops = plan_.regions[region];
      if (maker >= ops.begin && maker < ops.end) restored.push_back(v);
    }
    return RunAgain(region, restored);
  }

  // Runs a region again for everything that it restores, once per step.
  bool RunWhole(int32_t region) {
    if (replayed_[region] != 0) return true;
    replayed_[region] = 1;
    const int32_t depth = tree_.depth[region];
    std::vector<ValueId> restored;
    std::vector<StorageId> dropped;
    for (int32_t r = region; r < tree_.subtree_end[region]; ++r) {
      for (const StorageId s : at_home_[r]) {
        if (Level(s) <= depth) {
          restored.push_back(last_[s]);
        } else {
          dropped.push_back(s);
        }
      }
    }
    if (!RunAgain(region, restored)) return false;
    for (const StorageId s : dropped) present_[s] = kNoValue;
    return true;
  }

  // Makes what is missing of these values, and what that needs, in base order.
  bool RunAgain(int32_t region, const std::vector<ValueId>& restored) {
    const Versions& versions = problem_.versions;
    const Region& ops = plan_.regions[region];
    bool possible = true;
    std::vector<OpId> again;
    const auto want = [&](ValueId v) {
      const OpId maker = versions.maker[v];
      if (!IsMissing(v)) return;
      if (maker < ops.begin || maker >= ops.end ||
          problem_.rules.may_rerun[maker] == 0) {
        possible = false;
      } else if (wanted_[maker] == 0) {
        wanted_[maker] = 1;
        again.push_back(maker);
      }
    };
    for (const ValueId v : restored) want(v);
    for (size_t i = 0; i < again.size(); ++i) {
      for (const ValueId u : versions.Need(again[i])) want(u);
    }
    std::sort(again.begin(), again.end());
    for (const OpId o : again) {
      wanted_[o] = 0;
      if (possible) Exec(o);
    }
    return possible;
  }

  const Problem& problem_;
  const RegionPlan& plan_;
  const RegionTree tree_;
  const std::vector<int32_t> home_;      // by storage
  std::vector<ValueId> present_, last_;  // last_: version the forward leaves
  std::vector<uint8_t> wanted_;          // by op: scratch of RunAgain
  std::vector<uint8_t> replayed_;        // by region
  std::vector<std::vector<StorageId>> at_home_;  // by region
  std::vector<OpId> execs_;
};

}  // namespace

std::vector<OpId> RegionExecs(const Problem& problem, const RegionPlan& plan) {
  return Replay(problem, plan).Run();
}

}  // namespace reprise::planner
