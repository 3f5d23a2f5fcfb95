// SPDX-License-Identifier: Apache-2.0
//
// The cheapest proof of impossible: an op's working set.
//
//   working set(o) = static + bytes(need(o) and make(o)) + workspace(o)
//                    + first lives that the program holds while o runs
//
// All of it is present while o runs, in every schedule, so a budget below the
// largest working set is impossible. O(ops + arities); nothing interrupts it.
#pragma once

#include <vector>

#include "planner/model/plan.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// By op, in bytes.
std::vector<int64_t> WorkingSets(const Problem& problem);

// The largest working set as the reason of a refusal: op, bytes, storages.
Infeasible LargestWorkingSet(const Problem& problem);

// The storages an op needs and makes, largest first.
std::vector<StorageId> StoragesOf(const Problem& problem, OpId op);

// What the program itself holds while the op runs, beside what the op needs and
// makes, by id. O(storages). Static memory, workspace, these and StoragesOf add
// up to the op's working set.
std::vector<StorageId> HeldBesides(const Problem& problem, OpId op);

}  // namespace reprise::planner
