// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/pebble.h"

#include <algorithm>
#include <map>
#include <queue>
#include <vector>

namespace reprise::planner {
namespace {

using Set = std::vector<ValueId>;  // sorted; values of 0 bytes left out

// A tick is a value visited; this many take some milliseconds.
constexpr int64_t kTicksPerQuestion = 100'000;

class Search {
 public:
  Search(const Problem& problem, int64_t enough_bytes, int64_t most_ticks,
         const std::function<bool()>& should_stop)
      : problem_(problem),
        enough_bytes_(enough_bytes),
        most_ticks_(most_ticks),
        should_stop_(should_stop),
        kept_value_(problem.versions.storage.size(), 0),
        kept_storage_(problem.bytes.size(), 0),
        made_storage_(problem.bytes.size(), 0) {}

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
      if (!Expand(bottleneck, neg_depth, set)) return result_;
    }
    // Every way back contradicts itself, so the op could never have run; the
    // base order shows that this cannot happen.
    return result_;
  }

 private:
  // Returns false if it was told to stop. What was popped before is still
  // proven.
  bool Expand(int64_t bottleneck, int64_t neg_depth, const Set& set) {
    const Versions& versions = problem_.versions;
    int64_t set_bytes = problem_.static_bytes;
    for (const ValueId v : set) set_bytes += problem_.BytesOf(v);
    makers_.clear();
    for (const ValueId v : set) makers_.push_back(versions.maker[v]);
    std::sort(makers_.begin(), makers_.end());
    makers_.erase(std::unique(makers_.begin(), makers_.end()), makers_.end());
    for (const OpId m : makers_) {
      if (MustStop()) return false;
      ++result_.ticks;
      ++round_;
      for (const ValueId v : versions.Make(m)) {
        made_storage_[versions.storage[v]] = round_;
      }
      Set before;
      int64_t bytes = set_bytes + problem_.workspace[m];
      for (const ValueId v : set) {
        if (versions.maker[v] == m) continue;
        before.push_back(v);
        kept_value_[v] = round_;
        kept_storage_[versions.storage[v]] = round_;
      }
      // Another version of a storage that m reads or makes would be lost.
      bool clash = false;
      for (const ValueId v : versions.Make(m)) {
        if (std::binary_search(set.begin(), set.end(), v)) continue;
        if (kept_storage_[versions.storage[v]] == round_) clash = true;
        bytes += problem_.BytesOf(v);
      }
      for (const ValueId u : versions.Need(m)) {
        if (problem_.BytesOf(u) == 0 || kept_value_[u] == round_) continue;
        const StorageId s = versions.storage[u];
        if (kept_storage_[s] == round_) clash = true;
        if (made_storage_[s] != round_) bytes += problem_.BytesOf(u);
        before.push_back(u);
      }
      if (clash) continue;
      result_.ticks += static_cast<int64_t>(before.size());
      std::sort(before.begin(), before.end());
      Reach(std::max(bottleneck, bytes), std::move(before), neg_depth - 1);
    }
    return true;
  }

  bool MustStop() {
    if (result_.ticks >= most_ticks_) return true;
    if (!should_stop_ || result_.ticks < next_question_) return false;
    next_question_ = result_.ticks + kTicksPerQuestion;
    return should_stop_();
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
  const int64_t most_ticks_;
  const std::function<bool()>& should_stop_;
  PebbleResult result_;
  int64_t next_question_ = 0;
  // State for one op and one set at a time: entries equal to round_ mark what
  // is present before the op (values, their storages) or made by it.
  int64_t round_ = 0;
  std::vector<int64_t> kept_value_;
  std::vector<int64_t> kept_storage_;
  std::vector<int64_t> made_storage_;
  std::map<Set, int32_t> seen_;  // addresses of nodes are stable
  std::vector<const Set*> sets_;
  std::vector<int64_t> best_;
  std::vector<OpId> makers_;
  std::priority_queue<Arrival> queue_;
};

}  // namespace

PebbleResult LeastPeakOf(const Problem& problem, OpId op, int64_t enough_bytes,
                         int most_states, int64_t most_ticks,
                         const std::function<bool()>& should_stop) {
  return Search(problem, enough_bytes, most_ticks, should_stop)
      .Run(op, most_states);
}

}  // namespace reprise::planner
