// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/present.h"

#include <algorithm>

namespace reprise::planner {

Present::Present(const Problem& problem)
    : problem_(&problem),
      value_(problem.bytes.size(), kNoValue),
      first_life_(problem.bytes.size(), 1),
      next_use_(problem.versions.value_count(), 0),
      bytes_(problem.static_bytes) {}

void Present::Drop(StorageId s) {
  if (value_[s] == kNoValue) return;
  value_[s] = kNoValue;
  first_life_[s] = 0;
  bytes_ -= problem_->bytes[s];
  const auto at = std::find(storages_.begin(), storages_.end(), s);
  *at = storages_.back();
  storages_.pop_back();
}

void Present::Run(OpId op) {
  for (const ValueId v : problem_->versions.Make(op)) {
    const StorageId s = problem_->versions.storage[v];
    if (value_[s] == kNoValue) {
      bytes_ += problem_->bytes[s];
      storages_.push_back(s);
    }
    value_[s] = v;
  }
}

int32_t Present::GapOf(ValueId v, OpId at) {
  const auto uses = problem_->Uses(v);
  int32_t& next = next_use_[v];
  while (next < static_cast<int32_t>(uses.size()) && uses[next] < at) ++next;
  return problem_->flag_begin[v] + next;
}

bool Present::MayDrop(StorageId s, OpId at) {
  const OpId held = problem_->rules.held_until[s];
  if (first_life_[s] != 0 && held != kNoOp && held >= at) return false;
  const int32_t gap = GapOf(value_[s], at);
  return problem_->flag_fixed[gap] == 0 || problem_->IsTail(gap);
}

}  // namespace reprise::planner
