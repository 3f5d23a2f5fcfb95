// SPDX-License-Identifier: Apache-2.0
#include "planner/regions.h"

#include <algorithm>

#include "base/str_cat.h"
#include "planner/unread.h"

namespace reprise::planner {
namespace {

// Regions as a tree; indices are places in the sorted list, -1 is no region.
struct Tree {
  std::vector<int32_t> parent, depth;  // depth counts from 1
  std::vector<int32_t> subtree_end;    // the regions inside r: [r, end)
  std::vector<int32_t> innermost;      // by forward op

  bool IsLeaf(int32_t region) const {
    return subtree_end[region] == region + 1;
  }
};

Tree MakeTree(std::span<const Region> regions, OpId forward_ops) {
  Tree tree;
  tree.innermost.assign(forward_ops, -1);
  std::vector<int32_t> open;
  const auto close = [&] {
    tree.subtree_end[open.back()] = static_cast<int32_t>(tree.parent.size());
    open.pop_back();
  };
  for (const Region& region : regions) {
    while (!open.empty() && regions[open.back()].end <= region.begin) close();
    const auto index = static_cast<int32_t>(tree.parent.size());
    tree.parent.push_back(open.empty() ? -1 : open.back());
    open.push_back(index);
    tree.depth.push_back(static_cast<int32_t>(open.size()));
    tree.subtree_end.push_back(index + 1);
  }
  while (!open.empty()) close();
  // One walk with the regions that are open at each op.
  size_t next = 0;
  for (OpId o = 0; o < forward_ops; ++o) {
    while (!open.empty() && regions[open.back()].end <= o) open.pop_back();
    while (next < regions.size() && regions[next].begin <= o) {
      open.push_back(static_cast<int32_t>(next++));
    }
    if (!open.empty()) tree.innermost[o] = open.back();
  }
  return tree;
}

// Whether the executor may drop what the forward leaves of a storage.
bool MayDrop(const Problem& problem, StorageId s) {
  const Versions& versions = problem.versions;
  ValueId left = kNoValue;
  for (ValueId v = versions.first_value[s]; v <= versions.Last(s); ++v) {
    if (versions.maker[v] < problem.first_backward) left = v;
  }
  // What the program holds into the backward stays.
  const OpId held = problem.rules.held_until[s];
  return left != kNoValue && problem.rules.may_remake[left] != 0 &&
         (held == kNoOp || held < problem.first_backward);
}

// By storage: its home, -1 where it has none or may not be dropped.
std::vector<int32_t> Homes(const Problem& problem, const Tree& tree) {
  constexpr int32_t kUntouched = -2;
  std::vector<int32_t> home(problem.bytes.size(), kUntouched);
  const auto touch = [&](StorageId s, OpId o) {
    if (o >= problem.first_backward || home[s] == -1) return;
    int32_t region = tree.innermost[o];
    int32_t& now = home[s];
    if (now == kUntouched) {
      now = region;
      return;
    }
    // The innermost around both.
    while (now != region) {
      if (now == -1 || region == -1) {
        now = -1;
        return;
      }
      int32_t& deeper = tree.depth[now] >= tree.depth[region] ? now : region;
      deeper = tree.parent[deeper];
    }
  };
  for (ValueId v = 0; v < problem.versions.value_count(); ++v) {
    const StorageId s = problem.versions.storage[v];
    touch(s, problem.versions.maker[v]);
    for (const OpId use : problem.Uses(v)) touch(s, use);
  }
  for (StorageId s = 0; s < static_cast<StorageId>(home.size()); ++s) {
    if (home[s] < 0 || !MayDrop(problem, s)) home[s] = -1;
  }
  return home;
}

// Replay: the walk over the step that runs regions again as they are needed.
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
  bool IsMissing(ValueId v) const {
    return present_[problem_.versions.storage[v]] != v;
  }

  int32_t Level(StorageId s) const {
    return home_[s] < 0 ? 0 : std::min(plan_.levels[s], tree_.depth[home_[s]]);
  }

  void Exec(OpId o) {
    execs_.push_back(o);
    for (const ValueId v : problem_.versions.Make(o)) {
      present_[problem_.versions.storage[v]] = v;
    }
  }

  bool Restore(ValueId v, std::span<const ValueId> need) {
    const StorageId s = problem_.versions.storage[v];
    if (problem_.versions.maker[v] >= problem_.first_backward) return false;
    if (home_[s] < 0) return false;
    // One that another version took the place of is made again at home.
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

  bool RunLazily(int32_t region, std::span<const ValueId> need) {
    std::vector<ValueId> restored;
    for (const ValueId v : need) {
      const OpId maker = problem_.versions.maker[v];
      const Region& ops = plan_.regions[region];
      if (maker >= ops.begin && maker < ops.end) restored.push_back(v);
    }
    return RunAgain(region, restored);
  }

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
  const Tree tree_;
  const std::vector<int32_t> home_;      // by storage
  std::vector<ValueId> present_, last_;  // by storage; last_: of the forward
  std::vector<uint8_t> wanted_;          // by op: scratch of RunAgain
  std::vector<uint8_t> replayed_;        // by region
  std::vector<std::vector<StorageId>> at_home_;  // by region
  std::vector<OpId> execs_;
};

bool OuterFirst(const Region& a, const Region& b) {
  return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
}

}  // namespace

Status CheckRegions(const Problem& problem, const RegionPlan& plan) {
  std::vector<Region> open;
  for (size_t i = 0; i < plan.regions.size(); ++i) {
    const Region& region = plan.regions[i];
    if (region.begin < 0 || region.begin >= region.end ||
        region.end > problem.first_backward) {
      return InvalidArgument(
          StrCat("regions[", i, "]: [", region.begin, ", ", region.end,
                 ") is not a stretch of the forward, ops 0 to ",
                 problem.first_backward - 1));
    }
    if (i > 0 && !OuterFirst(plan.regions[i - 1], region)) {
      return InvalidArgument(StrCat("regions[", i,
                                    "]: comes twice or before one that begins "
                                    "earlier or holds it"));
    }
    while (!open.empty() && open.back().end <= region.begin) open.pop_back();
    if (!open.empty() && open.back().end < region.end) {
      return InvalidArgument(
          StrCat("regions[", i, "]: [", region.begin, ", ", region.end,
                 ") crosses [", open.back().begin, ", ", open.back().end, ")"));
    }
    open.push_back(region);
  }
  if (plan.levels.size() != problem.bytes.size()) {
    return InvalidArgument(StrCat("levels: must be one per storage, ",
                                  problem.bytes.size(), ", got ",
                                  plan.levels.size()));
  }
  for (size_t s = 0; s < plan.levels.size(); ++s) {
    if (plan.levels[s] < 0) {
      return InvalidArgument(StrCat(
          "levels[", s, "]: must not be negative, got ", plan.levels[s]));
    }
  }
  return OkStatus();
}

int DepthOf(const RegionPlan& plan) {
  std::vector<OpId> ends;
  size_t most = 0;
  for (const Region& region : plan.regions) {
    while (!ends.empty() && ends.back() <= region.begin) ends.pop_back();
    ends.push_back(region.end);
    most = std::max(most, ends.size());
  }
  return static_cast<int>(most);
}

std::vector<Region> Nested(std::vector<Region> regions, int most_depth) {
  // Cutting one changes its place: until all are in order.
  for (bool changed = true; changed;) {
    changed = false;
    std::sort(regions.begin(), regions.end(), OuterFirst);
    std::vector<OpId> ends;
    for (Region& region : regions) {
      while (!ends.empty() && ends.back() <= region.begin) ends.pop_back();
      if (!ends.empty() && ends.back() < region.end) {
        region.end = ends.back();
        changed = true;
      }
      ends.push_back(region.end);
    }
  }
  std::vector<Region> kept;
  std::vector<OpId> ends;
  for (const Region& region : regions) {
    if (region.begin >= region.end) continue;
    if (!kept.empty() && kept.back() == region) continue;
    while (!ends.empty() && ends.back() <= region.begin) ends.pop_back();
    if (static_cast<int>(ends.size()) >= most_depth) continue;
    ends.push_back(region.end);
    kept.push_back(region);
  }
  return kept;
}

std::vector<int32_t> HomeDepths(const Problem& problem,
                                std::span<const Region> regions) {
  const Tree tree = MakeTree(regions, problem.first_backward);
  std::vector<int32_t> depths = Homes(problem, tree);
  for (int32_t& home : depths) home = home < 0 ? 0 : tree.depth[home];
  return depths;
}

std::vector<OpId> RegionExecs(const Problem& problem, const RegionPlan& plan) {
  return Replay(problem, plan).Run();
}

RegionPlan RegionsOfExecs(const Problem& problem,
                          const std::vector<OpId>& execs, int most_depth) {
  RegionPlan plan;
  const Versions& versions = problem.versions;
  std::vector<uint8_t> ran(problem.op_count, 0);
  // By storage: the stretch that made it last, or -1.
  std::vector<int32_t> made_by(problem.bytes.size(), -1);
  std::vector<Region> stretches;
  std::vector<OpId> reach;  // by stretch: last forward reader of what it makes
  OpId last = kNoOp;        // of the stretch that is open
  for (const OpId o : execs) {
    if (ran[o] == 0 || o >= problem.first_backward) {
      ran[o] = 1;
      last = kNoOp;
      continue;
    }
    if (last == kNoOp || o <= last) {
      stretches.push_back({o, o + 1});
      reach.push_back(o);
    }
    stretches.back().end = o + 1;
    last = o;
    for (const ValueId v : versions.Make(o)) {
      for (const OpId use : problem.Uses(v)) {
        if (use < problem.first_backward)
          reach.back() = std::max(reach.back(), use);
      }
    }
    for (const ValueId v : versions.Make(o)) {
      made_by[versions.storage[v]] = static_cast<int32_t>(stretches.size()) - 1;
    }
  }
  // The last ops of a region need not run again where their outputs are there,
  // but it is they who read what the others make.
  std::vector<OpId> begins;
  for (const Region& stretch : stretches) begins.push_back(stretch.begin);
  std::sort(begins.begin(), begins.end());
  for (size_t i = 0; i < stretches.size(); ++i) {
    OpId& end = stretches[i].end;
    const auto next = std::lower_bound(begins.begin(), begins.end(), end);
    const OpId most = next == begins.end() ? problem.first_backward : *next;
    end = std::clamp(reach[i] + 1, end, std::max(end, most));
  }
  plan.regions = Nested(stretches, most_depth);

  // What is read after the forward without being made again is kept. The
  // forward comes first, whole.
  std::vector<uint8_t> read(problem.bytes.size(), 0);
  for (const ValueId v : problem.end_need) read[versions.storage[v]] = 1;
  for (size_t i = execs.size(); i-- > size_t(problem.first_backward);) {
    for (const ValueId v : versions.Make(execs[i])) {
      read[versions.storage[v]] = 0;
    }
    for (const ValueId v : versions.Need(execs[i])) {
      read[versions.storage[v]] = 1;
    }
  }
  const Tree tree = MakeTree(plan.regions, problem.first_backward);
  plan.levels = HomeDepths(problem, plan.regions);
  for (StorageId s = 0; s < static_cast<StorageId>(read.size()); ++s) {
    int32_t& level = plan.levels[s];
    if (read[s] != 0) level = 0;
    if (level == 0 || made_by[s] < 0) continue;
    // The region that the stretch became.
    const Region& stretch = stretches[made_by[s]];
    int32_t region = tree.innermost[stretch.begin];
    while (region >= 0 && plan.regions[region].end < stretch.end) {
      region = tree.parent[region];
    }
    if (region >= 0) level = std::min(level, tree.depth[region]);
  }
  return plan;
}

StatusOr<Evaluation> EvaluateRegions(const Problem& problem,
                                     std::span<const Entry> schedule,
                                     const RegionPlan& plan) {
  RETURN_IF_ERROR(CheckRegions(problem, plan));
  const std::vector<OpId> execs = RegionExecs(problem, plan);
  size_t next = 0;
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].kind != Entry::Kind::kExec) continue;
    const OpId o = next < execs.size() ? execs[next] : kNoOp;
    if (schedule[i].id != o) {
      return InvalidArgument(
          StrCat("schedule[", i, "]: op ", schedule[i].id, " runs where ",
                 execs.empty() ? std::string("the regions cannot be run")
                 : o == kNoOp  ? std::string("the regions are done")
                               : StrCat("the regions run op ", o)));
    }
    ++next;
  }
  if (next != execs.size()) {
    return InvalidArgument(
        StrCat("schedule: ends where the regions run op ", execs[next]));
  }
  return Evaluate(*problem.graph, schedule, problem.capabilities);
}

}  // namespace reprise::planner
