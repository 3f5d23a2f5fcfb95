// SPDX-License-Identifier: Apache-2.0
#include "planner/verify/chain.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/str_cat.h"

namespace reprise::verify {
namespace {

constexpr size_t kMostSets = 25'000;

using Present = std::set<Value>;  // without values of 0 bytes

// Computes what was present when m began, if its exec was the last to make
// something in `now`. Returns false if a storage would have had two versions.
bool Undo(const Facts& facts, OpId m, const Present& now, Present& before,
          int64_t& bytes) {
  before = now;
  for (const Value v : facts.makes[m]) before.erase(v);
  // While m ran, all of `before` was present, plus what m reads and makes.
  std::set<StorageId> storages;
  for (const Value v : before) storages.insert(facts.storage[v]);
  const auto excludes = [&](Value v) {
    const StorageId s = facts.storage[v];
    const auto other = before.lower_bound(facts.first_value[s]);
    return other != before.end() && *other < facts.first_value[s + 1] &&
           *other != v;
  };
  for (const Value v : facts.makes[m]) {
    if (excludes(v)) return false;
  }
  for (const Value u : facts.needs[m]) {
    if (excludes(u)) return false;
  }
  for (const Value v : facts.makes[m]) storages.insert(facts.storage[v]);
  for (const Value u : facts.needs[m]) storages.insert(facts.storage[u]);
  bytes = facts.graph->static_bytes + facts.graph->ops[m].workspace_bytes;
  for (const StorageId s : storages) bytes += facts.graph->storages[s].bytes;
  for (const Value u : facts.needs[m]) {
    if (facts.BytesOf(u) > 0) before.insert(u);
  }
  return true;
}

}  // namespace

Status CheckChain(const Facts& facts, OpId at, int64_t least_bytes) {
  Present start;
  int64_t bytes =
      facts.graph->static_bytes + facts.graph->ops[at].workspace_bytes;
  for (const Value v : facts.needs[at]) {
    if (facts.BytesOf(v) > 0) start.insert(v);
    bytes += facts.BytesOf(v);
  }
  for (const StorageId s : facts.graph->ops[at].writes) {
    bytes += facts.graph->storages[s].bytes;
  }
  if (bytes >= least_bytes) return OkStatus();
  std::set<Present> seen = {start};
  std::vector<Present> open = {start};
  while (!open.empty()) {
    const Present now = std::move(open.back());
    open.pop_back();
    if (now.empty()) {
      return InvalidArgument(StrCat("op ", at, " can be reached in less than ",
                                    least_bytes, " bytes"));
    }
    std::set<OpId> makers;
    for (const Value v : now) makers.insert(facts.maker[v]);
    for (const OpId m : makers) {
      Present before;
      int64_t during = 0;
      if (!Undo(facts, m, now, before, during) || during >= least_bytes) {
        continue;
      }
      if (!seen.insert(before).second) continue;
      if (seen.size() > kMostSets) {
        return {Code::kResourceExhausted, "too many sets to look at"};
      }
      open.push_back(std::move(before));
    }
  }
  return OkStatus();
}

}  // namespace reprise::verify
