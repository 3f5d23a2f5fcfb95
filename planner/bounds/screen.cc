// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/screen.h"

#include <algorithm>

namespace reprise::planner {

void SortBySize(const Problem& problem, std::vector<StorageId>& storages) {
  std::sort(storages.begin(), storages.end(), [&](StorageId a, StorageId b) {
    return problem.bytes[a] != problem.bytes[b]
               ? problem.bytes[a] > problem.bytes[b]
               : a < b;
  });
}

std::vector<StorageId> StoragesOf(const Problem& problem, OpId op) {
  std::vector<StorageId> storages;
  for (const ValueId v : problem.versions.Need(op)) {
    storages.push_back(problem.versions.storage[v]);
  }
  for (const StorageId s : problem.Writes(op)) storages.push_back(s);
  SortBySize(problem, storages);
  return storages;
}

std::vector<StorageId> HeldBesides(const Problem& problem, OpId op) {
  const Versions& versions = problem.versions;
  const std::vector<OpId>& held_until = problem.rules.held_until;
  std::vector<uint8_t> own(problem.bytes.size(), 0);
  for (const StorageId s : StoragesOf(problem, op)) own[s] = 1;
  std::vector<StorageId> held;
  for (size_t s = 0; s < held_until.size(); ++s) {
    if (own[s] == 0 && held_until[s] != kNoOp && held_until[s] >= op &&
        versions.maker[versions.first_value[s]] <= op) {
      held.push_back(static_cast<StorageId>(s));
    }
  }
  return held;
}

std::vector<int64_t> WorkingSets(const Problem& problem) {
  // Bytes of first lives held by the program at each op, from their writer to
  // their release; the op's own storages are subtracted below.
  const Versions& versions = problem.versions;
  const std::vector<OpId>& held_until = problem.rules.held_until;
  std::vector<int64_t> held(problem.op_count + 1, 0);
  for (size_t s = 0; s < held_until.size(); ++s) {
    if (held_until[s] == kNoOp) continue;
    held[versions.maker[versions.first_value[s]]] += problem.bytes[s];
    held[held_until[s] + 1] -= problem.bytes[s];
  }

  std::vector<int64_t> sets(problem.op_count);
  int64_t held_bytes = 0;
  for (OpId o = 0; o < problem.op_count; ++o) {
    held_bytes += held[o];
    int64_t set = problem.static_bytes + problem.workspace[o] + held_bytes;
    for (const StorageId s : StoragesOf(problem, o)) {
      if (held_until[s] == kNoOp || held_until[s] < o) set += problem.bytes[s];
    }
    sets[o] = set;
  }
  return sets;
}

Infeasible LargestWorkingSet(const Problem& problem) {
  Infeasible result;
  const std::vector<int64_t> sets = WorkingSets(problem);
  if (sets.empty()) {
    result.smallest_budget_bytes = problem.static_bytes;
    return result;
  }
  const auto largest = std::max_element(sets.begin(), sets.end());
  result.smallest_budget_bytes = *largest;
  result.blocking_op = static_cast<OpId>(largest - sets.begin());
  result.storages = StoragesOf(problem, result.blocking_op);
  return result;
}

}  // namespace reprise::planner
