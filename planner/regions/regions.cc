// SPDX-License-Identifier: Apache-2.0
#include "planner/regions/regions.h"

#include <algorithm>

#include "base/str_cat.h"
#include "planner/regions/region_tree.h"

namespace reprise::planner {
namespace {

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
  // Cutting a region changes its position, so repeat until all are in order.
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
  const RegionTree tree = MakeTree(regions, problem.first_backward);
  std::vector<int32_t> depths = Homes(problem, tree);
  for (int32_t& home : depths) home = home < 0 ? 0 : tree.depth[home];
  return depths;
}

RegionPlan RegionsOfExecs(const Problem& problem,
                          const std::vector<OpId>& execs, int most_depth) {
  RegionPlan plan;
  const Versions& versions = problem.versions;
  std::vector<uint8_t> ran(problem.op_count, 0);
  // By storage: the stretch that last made it, or -1.
  std::vector<int32_t> made_by(problem.bytes.size(), -1);
  std::vector<Region> stretches;
  std::vector<OpId> reach;  // by stretch: last forward reader of what it makes
  OpId last = kNoOp;        // of the open stretch
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
  // The last ops of a region need not run again if their outputs are present,
  // but they read what the others make.
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

  // What is read after the forward without being recomputed is kept. The
  // complete forward comes first.
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
  const RegionTree tree = MakeTree(plan.regions, problem.first_backward);
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
