// SPDX-License-Identifier: Apache-2.0
//
// The cheapest proof of impossibility: an op's working set.
//
//   working set(o) = static + bytes(need(o) and make(o)) + workspace(o)
//                    + first lives that the program holds while o runs
//
// All of it is present while o runs, in every schedule, so a budget below the
// largest working set is impossible. O(ops + arities); cannot be interrupted.
#pragma once

#include <vector>

#include "planner/model/plan.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// Returns the working set of every op, in bytes.
std::vector<int64_t> WorkingSets(const Problem& problem);

// Returns the largest working set as the reason for a refusal: op, bytes,
// storages.
Infeasible LargestWorkingSet(const Problem& problem);

// Sorts storages by bytes, largest first, then by id.
void SortBySize(const Problem& problem, std::vector<StorageId>& storages);

// Returns the storages that an op needs and makes, largest first.
std::vector<StorageId> StoragesOf(const Problem& problem, OpId op);

// Returns the other storages that the program itself holds while the op runs,
// by id. Static memory, workspace, these and StoragesOf add up to the op's
// working set. O(storages).
std::vector<StorageId> HeldBesides(const Problem& problem, OpId op);

}  // namespace reprise::planner
