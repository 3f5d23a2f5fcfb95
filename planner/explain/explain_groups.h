// SPDX-License-Identifier: Apache-2.0
//
// Groups equal storages of equal blocks into one line: "layers.0-31.mlp
// aten.gelu.default". Two storages are equal if the plan does the same with
// them and either their ops correspond in a run of repeated blocks (blocks.h),
// which also works without module names, or the paths of their modules differ
// only in numbers and their op, its place in the module and their bytes are
// equal. O(n log n).
#pragma once

#include <string>
#include <vector>

#include "planner/explain/explain.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Returns the groups, most bytes first.
std::vector<StorageGroup> GroupStorages(
    const Problem& problem, const std::vector<StorageExplanation>& storages);

// {"layers.0.mlp", "layers.1.mlp", "layers.3.mlp"} -> "layers.0-1,3.mlp". Paths
// that differ in words, too, are listed; if there are many, only the first.
std::string JoinPaths(const std::vector<std::string>& paths);

}  // namespace reprise::planner
