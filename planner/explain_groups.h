// SPDX-License-Identifier: Apache-2.0
//
// Equal storages of equal blocks as one line: "layers.0-31.mlp
// aten.gelu.default". Two storages are equal when the paths of their modules
// differ in numbers only, and their op, its place in the module, their bytes
// and what the plan does with them are the same. O(storages log storages).
#pragma once

#include <string>
#include <vector>

#include "planner/explain.h"
#include "planner/problem.h"

namespace reprise::planner {

// Most bytes first.
std::vector<StorageGroup> GroupStorages(
    const Problem& problem, const std::vector<StorageExplanation>& storages);

// {"layers.0.mlp", "layers.1.mlp", "layers.3.mlp"} -> "layers.0-1,3.mlp". The
// paths must differ in their numbers only.
std::string JoinPaths(const std::vector<std::string>& paths);

}  // namespace reprise::planner
