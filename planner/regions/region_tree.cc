// SPDX-License-Identifier: Apache-2.0
#include "planner/regions/region_tree.h"

namespace reprise::planner {
namespace {

// Returns whether the executor may discard what the forward leaves of a
// storage.
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

}  // namespace

RegionTree MakeTree(std::span<const Region> regions, OpId forward_ops) {
  RegionTree tree;
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
  // One walk, with the stack of regions that contain each op.
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

std::vector<int32_t> Homes(const Problem& problem, const RegionTree& tree) {
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
    // The innermost region around both.
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

}  // namespace reprise::planner
