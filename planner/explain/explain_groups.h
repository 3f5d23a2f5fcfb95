// SPDX-License-Identifier: Apache-2.0
//
// Equal storages of equal blocks as one line: "layers.0-31.mlp
// aten.gelu.default". Two storages are equal when their ops stand for each
// other in a run of repeated blocks (blocks.h), or the paths of their modules
// differ in numbers only and their op, its place in the module and their bytes
// are the same; and when the plan does the same with them. So steps without
// module names are grouped, too. O(n log n).
#pragma once

#include <string>
#include <vector>

#include "planner/explain/explain.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Most bytes first.
std::vector<StorageGroup> GroupStorages(
    const Problem& problem, const std::vector<StorageExplanation>& storages);

// {"layers.0.mlp", "layers.1.mlp", "layers.3.mlp"} -> "layers.0-1,3.mlp". Paths
// that differ in words, too, are listed; of many, the first ones.
std::string JoinPaths(const std::vector<std::string>& paths);

}  // namespace reprise::planner
