// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/burst.h"

#include <algorithm>

namespace reprise::planner {

BurstSearch::BurstSearch(const Problem& problem,
                         const std::vector<int32_t>& runs, int64_t budget_bytes,
                         Effort& effort, int64_t last_tick)
    : problem_(problem),
      runs_(runs),
      budget_bytes_(budget_bytes),
      effort_(effort),
      last_tick_(last_tick) {}

void BurstSearch::StandAt(Present& present, OpId at) {
  present_ = &present;
  at_ = at;
  retained_bytes_ = problem_.static_bytes;
  retained_.assign(problem_.bytes.size(), 0);
  for (const StorageId s : present.storages()) {
    if (present.MayDrop(s, at)) continue;
    retained_[s] = 1;
    retained_bytes_ += problem_.bytes[s];
  }
}

bool BurstSearch::AllPresent(const ValueSet& set) const {
  return std::all_of(set.begin(), set.end(),
                     [&](ValueId v) { return present_->Has(v); });
}

// Returns the time of the makers of what is missing: each must run at least
// once.
int64_t BurstSearch::MissingTime(const ValueSet& set) {
  makers_.clear();
  for (const ValueId v : set) {
    if (!present_->Has(v)) makers_.push_back(problem_.versions.maker[v]);
  }
  std::sort(makers_.begin(), makers_.end());
  makers_.erase(std::unique(makers_.begin(), makers_.end()), makers_.end());
  int64_t time = 0;
  for (const OpId m : makers_) time += problem_.rules.rerun_ns[m] + 1;
  return time;
}

// Returns the bytes while m runs, with `before` and its outputs present.
int64_t BurstSearch::BytesWhile(OpId m, const ValueSet& before,
                                const ValueSet& after) {
  int64_t bytes = retained_bytes_ + problem_.workspace[m];
  scratch_.clear();
  for (const ValueSet* set : {&before, &after}) {
    for (const ValueId v : *set) {
      scratch_.push_back(problem_.versions.storage[v]);
    }
  }
  for (const StorageId s : problem_.Writes(m)) scratch_.push_back(s);
  std::sort(scratch_.begin(), scratch_.end());
  scratch_.erase(std::unique(scratch_.begin(), scratch_.end()), scratch_.end());
  for (const StorageId s : scratch_) {
    if (retained_[s] == 0) bytes += problem_.bytes[s];
  }
  return bytes;
}

// Computes the set before m runs. Returns false if versions contradict each
// other.
bool BurstSearch::Undo(OpId m, const ValueSet& after, ValueSet& before) const {
  const Versions& versions = problem_.versions;
  const auto make = versions.Make(m);
  before.clear();
  for (const ValueId v : after) {
    if (std::find(make.begin(), make.end(), v) == make.end()) {
      before.push_back(v);
    }
  }
  for (const ValueId v : before) {
    for (const ValueId w : make) {
      if (versions.storage[v] == versions.storage[w]) return false;
    }
  }
  const size_t kept = before.size();
  for (const ValueId u : versions.Need(m)) {
    bool known = false;
    for (size_t i = 0; i < kept; ++i) {
      if (before[i] == u) known = true;
      if (before[i] != u &&
          versions.storage[before[i]] == versions.storage[u]) {
        return false;
      }
    }
    if (!known) before.push_back(u);
  }
  std::sort(before.begin(), before.end());
  return true;
}

bool BurstSearch::MayUndo(OpId m, const ValueSet& after) const {
  if (!problem_.rules.MayRunAgain(m, at_)) return false;
  const int most = problem_.capabilities.max_runs;
  if (most > 0 && runs_[m] >= most) return false;
  for (const ValueId v : problem_.versions.Make(m)) {
    if (std::binary_search(after.begin(), after.end(), v) &&
        problem_.rules.may_remake[v] == 0) {
      return false;
    }
    // A retained storage with another version cannot be freed.
    const StorageId s = problem_.versions.storage[v];
    if (retained_[s] != 0 && present_->At(s) != v) return false;
  }
  return true;
}

std::optional<Burst> BurstSearch::AllAtOnce(const ValueSet& wanted,
                                            const std::set<ValueId>& keep) {
  const Versions& versions = problem_.versions;
  std::vector<ValueId> open(wanted);
  std::set<OpId> known;
  while (!open.empty()) {
    const ValueId v = open.back();
    open.pop_back();
    if (present_->Has(v)) continue;
    const OpId m = versions.maker[v];
    if (problem_.rules.may_remake[v] == 0 ||
        !problem_.rules.IsInWindow(m, at_)) {
      return std::nullopt;
    }
    if (!known.insert(m).second) continue;
    const int most = problem_.capabilities.max_runs;
    if (most > 0 && runs_[m] >= most) return std::nullopt;
    for (const ValueId u : versions.Need(m)) open.push_back(u);
  }
  Burst burst;
  burst.ops.assign(known.begin(), known.end());
  burst.survives.resize(burst.ops.size());
  // What later ops of the burst need, from back to front.
  std::set<ValueId> needed(wanted.begin(), wanted.end());
  needed.insert(keep.begin(), keep.end());
  for (size_t i = burst.ops.size(); i-- > 0;) {
    const OpId m = burst.ops[i];
    const ValueSet after(needed.begin(), needed.end());
    for (const ValueId v : versions.Make(m)) needed.erase(v);
    for (const ValueId u : versions.Need(m)) needed.insert(u);
    burst.survives[i].assign(needed.begin(), needed.end());
    effort_.Spend(static_cast<int64_t>(20 * (1 + needed.size())));
    burst.peak_bytes =
        std::max(burst.peak_bytes, BytesWhile(m, burst.survives[i], after));
  }
  effort_.Spend(static_cast<int64_t>(40 * burst.ops.size()));
  return burst;
}

}  // namespace reprise::planner
