// SPDX-License-Identifier: Apache-2.0
//
// Regions (regions.h) as a tree, and the home of each storage in it. A region's
// index is its position in the sorted list; -1 means no region.
//
// MakeTree: O(regions + ops). Homes: O(depth) per use of a value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

struct RegionTree {
  std::vector<int32_t> parent, depth;  // depth counts from 1
  std::vector<int32_t> subtree_end;    // the regions inside r: [r, end)
  std::vector<int32_t> innermost;      // by forward op

  // Returns whether no region is inside this one.
  bool IsLeaf(int32_t region) const {
    return subtree_end[region] == region + 1;
  }
};

// Builds the tree of valid, sorted regions.
RegionTree MakeTree(std::span<const Region> regions, OpId forward_ops);

// By storage: its home; -1 if it has none or may not be discarded.
std::vector<int32_t> Homes(const Problem& problem, const RegionTree& tree);

}  // namespace reprise::planner
