// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/pebble.h"

#include <algorithm>
#include <map>
#include <queue>
#include <vector>

namespace reprise::planner {
namespace {

using Set = std::vector<ValueId>;  // sorted; values of 0 bytes left out

class Search {
 public:
  Search(const Problem& problem, int64_t enough_bytes)
      : problem_(problem), enough_bytes_(enough_bytes) {}

  PebbleResult Run(OpId op, int most_states) {
    Set start;
    int64_t bytes = problem_.static_bytes + problem_.workspace[op];
    for (const ValueId v : problem_.versions.Need(op)) {
      bytes += problem_.BytesOf(v);
      if (problem_.BytesOf(v) > 0) start.push_back(v);
    }
    for (const StorageId s : problem_.Writes(op)) bytes += problem_.bytes[s];
    std::sort(start.begin(), start.end());
    Reach(bytes, std::move(start));
    int states = 0;
    while (!queue_.empty()) {
      const auto [bottleneck, neg_depth, index] = queue_.top();
      queue_.pop();
      result_.least_bytes = bottleneck;
      const Set set = *sets_[index];
      if (set.empty() || bottleneck > enough_bytes_ || ++states > most_states) {
        return result_;
      }
      Expand(bottleneck, neg_depth, set);
    }
    // Every way back contradicts itself: such an op cannot have run at all;
    // the base order shows that this does not happen.
    return result_;
  }

 private:
  void Expand(int64_t bottleneck, int64_t neg_depth, const Set& set) {
    const Versions& versions = problem_.versions;
    int64_t set_bytes = problem_.static_bytes;
    for (const ValueId v : set) set_bytes += problem_.BytesOf(v);
    makers_.clear();
    for (const ValueId v : set) makers_.push_back(versions.maker[v]);
    std::sort(makers_.begin(), makers_.end());
    makers_.erase(std::unique(makers_.begin(), makers_.end()), makers_.end());
    for (const OpId m : makers_) {
      ++result_.ticks;
      const auto make = versions.Make(m);
      const auto made = [&](ValueId v) {
        return std::find(make.begin(), make.end(), v) != make.end();
      };
      Set before;
      for (const ValueId v : set) {
        if (!made(v)) before.push_back(v);
      }
      bool clash = false;
      int64_t bytes = set_bytes + problem_.workspace[m];
      const auto holds = [&](StorageId s) {
        // Another version of a storage that m reads or makes would be lost.
        return std::any_of(before.begin(), before.end(),
                           [&](ValueId v) { return versions.storage[v] == s; });
      };
      for (const ValueId v : make) {
        const bool in_set = std::binary_search(set.begin(), set.end(), v);
        if (in_set) continue;
        if (holds(versions.storage[v])) clash = true;
        bytes += problem_.BytesOf(v);
      }
      const size_t kept = before.size();
      for (const ValueId u : versions.Need(m)) {
        if (problem_.BytesOf(u) == 0) continue;
        const auto end = before.begin() + static_cast<int64_t>(kept);
        if (std::find(before.begin(), end, u) != end) continue;
        const StorageId s = versions.storage[u];
        const bool mutated =
            std::any_of(make.begin(), make.end(),
                        [&](ValueId v) { return versions.storage[v] == s; });
        if (std::any_of(before.begin(), end,
                        [&](ValueId v) { return versions.storage[v] == s; })) {
          clash = true;
        }
        if (!mutated) bytes += problem_.BytesOf(u);
        before.push_back(u);
      }
      if (clash) continue;
      result_.ticks += static_cast<int64_t>(before.size());
      std::sort(before.begin(), before.end());
      Reach(std::max(bottleneck, bytes), std::move(before), neg_depth - 1);
    }
  }

  void Reach(int64_t bottleneck, Set set, int64_t neg_depth = 0) {
    const auto [place, fresh] =
        seen_.try_emplace(std::move(set), static_cast<int32_t>(best_.size()));
    const int32_t index = place->second;
    if (fresh) {
      best_.push_back(bottleneck);
      sets_.push_back(&place->first);
    } else if (best_[index] <= bottleneck) {
      return;
    }
    best_[index] = bottleneck;
    queue_.push({bottleneck, neg_depth, index});
  }

  struct Arrival {
    int64_t bottleneck;
    int64_t neg_depth;  // deeper first among equals
    int32_t index;
    bool operator<(const Arrival& other) const {
      if (bottleneck != other.bottleneck) return bottleneck > other.bottleneck;
      if (neg_depth != other.neg_depth) return neg_depth > other.neg_depth;
      return index > other.index;
    }
  };

  const Problem& problem_;
  const int64_t enough_bytes_;
  PebbleResult result_;
  std::map<Set, int32_t> seen_;  // nodes of a map stay where they are
  std::vector<const Set*> sets_;
  std::vector<int64_t> best_;
  std::vector<OpId> makers_;
  std::priority_queue<Arrival> queue_;
};

}  // namespace

PebbleResult LeastPeakOf(const Problem& problem, OpId op, int64_t enough_bytes,
                         int most_states) {
  return Search(problem, enough_bytes).Run(op, most_states);
}

}  // namespace reprise::planner
