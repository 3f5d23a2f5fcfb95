// SPDX-License-Identifier: Apache-2.0
//
// The two searches of burst.h over sets of values.
#include <algorithm>
#include <map>
#include <queue>

#include "planner/construct/burst.h"

namespace reprise::planner {
namespace {

// Sets explored per step of a beam, and steps per op of the graph.
constexpr size_t kBeamWidth = 40;
constexpr size_t kBeamSteps = 20;

struct Arrival {
  int64_t estimate;
  OpId undone;
  int32_t node;
  bool operator<(const Arrival& other) const {
    if (estimate != other.estimate) return estimate > other.estimate;
    if (undone != other.undone) return undone < other.undone;
    return node > other.node;
  }
};

void SortAndDropTwins(std::vector<OpId>& ops) {
  std::sort(ops.begin(), ops.end());
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
}

}  // namespace

// Returns the burst that leads from a present set to the wanted one.
Burst BurstSearch::Path(const std::vector<Node>& nodes, int32_t index) {
  Burst burst;
  for (; nodes[index].parent >= 0; index = nodes[index].parent) {
    burst.ops.push_back(nodes[index].undone);
    burst.survives.push_back(nodes[index].set);
  }
  return burst;
}

std::optional<Burst> BurstSearch::Cheapest(const ValueSet& wanted,
                                           int most_states) {
  std::vector<Node> nodes;
  std::map<ValueSet, int32_t> seen;
  std::priority_queue<Arrival> queue;
  nodes.push_back({wanted, -1, kNoOp, 0, false});
  seen[wanted] = 0;
  queue.push({MissingTime(wanted), kNoOp, 0});
  int states = 0;
  ValueSet before;
  while (!queue.empty()) {
    const int32_t index = queue.top().node;
    queue.pop();
    if (nodes[index].closed) continue;
    nodes[index].closed = true;
    const ValueSet set = nodes[index].set;
    effort_.Spend(40);
    if (AllPresent(set)) return Path(nodes, index);
    if (++states > most_states || Over()) return std::nullopt;
    std::vector<OpId> undo;
    for (const ValueId v : set) undo.push_back(problem_.versions.maker[v]);
    SortAndDropTwins(undo);
    for (const OpId m : undo) {
      if (!MayUndo(m, set) || !Undo(m, set, before) ||
          BytesWhile(m, before, set) > budget_bytes_) {
        continue;
      }
      effort_.Spend(static_cast<int64_t>(40 + before.size()));
      const int64_t time =
          nodes[index].time_ns + problem_.rules.rerun_ns[m] + 1;
      const auto [place, fresh] =
          seen.try_emplace(before, static_cast<int32_t>(nodes.size()));
      if (!fresh) {
        Node& known = nodes[place->second];
        if (known.closed || known.time_ns <= time) continue;
        known = {before, index, m, time, false};
      } else {
        nodes.push_back({before, index, m, time, false});
      }
      queue.push({time + 2 * MissingTime(before), m, place->second});
    }
  }
  return std::nullopt;
}

void BurstSearch::FindAncestors() {
  const Versions& versions = problem_.versions;
  const size_t words = static_cast<size_t>(problem_.op_count) / 64 + 1;
  ancestors_.assign(problem_.op_count, std::vector<uint64_t>(words, 0));
  for (OpId o = 0; o < problem_.op_count; ++o) {
    for (const ValueId u : versions.Need(o)) {
      const OpId m = versions.maker[u];
      for (size_t w = 0; w < words; ++w) ancestors_[o][w] |= ancestors_[m][w];
      ancestors_[o][m / 64] |= uint64_t{1} << (m % 64);
    }
  }
  effort_.Spend(static_cast<int64_t>(words) * problem_.op_count);
}

// An exec from which another member of the set derives will be repeated, so its
// bytes count once more.
std::optional<Burst> BurstSearch::Smallest(const ValueSet& wanted,
                                           bool keep_present) {
  if (problem_.op_count > kMostBeamOps) return std::nullopt;
  if (ancestors_.empty()) FindAncestors();
  struct Step {
    int64_t score;
    int32_t parent;
    OpId undone;
    ValueSet set;
  };
  std::vector<Node> nodes;
  std::set<ValueSet> seen;
  nodes.push_back({wanted, -1, kNoOp, 0, false});
  std::vector<int32_t> beam = {0};
  std::vector<Step> steps;
  std::vector<uint64_t> above;
  ValueSet before;
  const size_t most_steps = kBeamSteps * static_cast<size_t>(problem_.op_count);
  for (size_t step = 0; step < most_steps && !beam.empty(); ++step) {
    if (Over()) return std::nullopt;
    steps.clear();
    for (const int32_t index : beam) {
      const ValueSet& set = nodes[index].set;
      std::vector<OpId> undo;
      above.assign(problem_.op_count / 64 + 1, 0);
      for (const ValueId v : set) {
        const OpId m = problem_.versions.maker[v];
        for (size_t w = 0; w < above.size(); ++w) above[w] |= ancestors_[m][w];
        if (!keep_present || !present_->Has(v)) undo.push_back(m);
      }
      SortAndDropTwins(undo);
      for (const OpId m : undo) {
        if (!MayUndo(m, set) || !Undo(m, set, before) ||
            BytesWhile(m, before, set) > budget_bytes_) {
          continue;
        }
        effort_.Spend(static_cast<int64_t>(10 + before.size()));
        if (!seen.insert(before).second) continue;
        int64_t score = 0;
        for (const ValueId v : before) score += problem_.BytesOf(v);
        if ((above[m / 64] >> (m % 64) & 1) != 0) {
          for (const ValueId v : problem_.versions.Make(m)) {
            score += problem_.BytesOf(v);
          }
        }
        steps.push_back({score, index, m, before});
      }
    }
    std::stable_sort(
        steps.begin(), steps.end(),
        [](const Step& a, const Step& b) { return a.score < b.score; });
    if (steps.size() > kBeamWidth) steps.resize(kBeamWidth);
    beam.clear();
    for (Step& s : steps) {
      const int32_t index = static_cast<int32_t>(nodes.size());
      nodes.push_back({std::move(s.set), s.parent, s.undone, 0, false});
      if (AllPresent(nodes.back().set)) return Path(nodes, index);
      beam.push_back(index);
    }
  }
  return std::nullopt;
}

}  // namespace reprise::planner
