// SPDX-License-Identifier: Apache-2.0
#include "planner/chains/chain.h"

#include <algorithm>
#include <numeric>

namespace reprise::planner {
namespace {

constexpr int kFewestArticulations = 3;

}  // namespace

OpId LastForwardUse(const Problem& problem, ValueId v) {
  OpId last = problem.versions.maker[v];
  for (const OpId use : problem.Uses(v)) {
    if (use < problem.first_backward) last = use;
  }
  return last;
}

Chain FindChain(const Problem& problem) {
  Chain chain{.boundary = problem.first_backward};
  if (chain.boundary <= 0 || chain.boundary >= problem.op_count) return chain;
  const OpId last = chain.boundary - 1;
  // What crosses after op p, as differences.
  std::vector<int64_t> bytes(chain.boundary + 1, 0);
  std::vector<int32_t> count(chain.boundary + 1, 0);
  for (ValueId v = 0; v < problem.versions.value_count(); ++v) {
    const OpId maker = problem.versions.maker[v];
    if (maker >= chain.boundary || problem.rules.may_remake[v] == 0 ||
        problem.BytesOf(v) == 0) {
      continue;
    }
    const OpId end = LastForwardUse(problem, v);
    bytes[maker] += problem.BytesOf(v);
    bytes[end] -= problem.BytesOf(v);
    ++count[maker];
    --count[end];
  }
  std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
  std::partial_sum(count.begin(), count.end(), count.begin());

  std::vector<OpId> cuts;
  for (OpId p = 0; p < last; ++p) {
    // The same value may cross several ops that make nothing: only the first is
    // a cut.
    const bool same = p > 0 && count[p - 1] == 1 && problem.Writes(p).empty();
    if (count[p] == 1 && !same) cuts.push_back(p);
  }
  chain.articulated = static_cast<int>(cuts.size()) >= kFewestArticulations;
  if (!chain.articulated) {
    cuts.clear();
    for (OpId p = 1; p + 1 < last; ++p) {
      if (bytes[p] < bytes[p - 1] && bytes[p] <= bytes[p + 1]) {
        cuts.push_back(p);
      }
    }
  }
  cuts.push_back(last);
  for (const OpId p : cuts) {
    chain.ends.push_back(p);
    chain.crossing_bytes.push_back(bytes[p]);
  }
  return chain;
}

std::vector<int64_t> BytesMade(const Problem& problem, const Chain& chain,
                               int64_t per_op) {
  std::vector<int64_t> made(chain.stage_count(), 0);
  int stage = 0;
  for (OpId o = 0; o < chain.boundary; ++o) {
    while (o > chain.ends[stage]) ++stage;
    for (const StorageId s : problem.Writes(o)) made[stage] += problem.bytes[s];
    made[stage] += per_op;
  }
  return made;
}

Chain JoinStages(const Problem& problem, const Chain& chain, int most_stages) {
  if (chain.stage_count() <= most_stages) return chain;
  // One byte per op more, so that stages without bytes are joined evenly.
  const std::vector<int64_t> made = BytesMade(problem, chain, 1);
  const int64_t all = std::accumulate(made.begin(), made.end(), int64_t{0});
  Chain joined{.boundary = chain.boundary, .articulated = chain.articulated};
  int64_t sum = 0;
  for (int i = 0; i < chain.stage_count(); ++i) {
    sum += made[i];
    const auto goal = static_cast<__int128>(all) *
                      (static_cast<int64_t>(joined.ends.size()) + 1) /
                      most_stages;
    if (sum < goal && i + 1 < chain.stage_count()) continue;
    joined.ends.push_back(chain.ends[i]);
    joined.crossing_bytes.push_back(chain.crossing_bytes[i]);
  }
  if (joined.ends.back() != chain.boundary - 1) {
    joined.ends.back() = chain.boundary - 1;
    joined.crossing_bytes.back() = chain.crossing_bytes.back();
  }
  return joined;
}

std::vector<int32_t> StagesOfOps(const Problem& problem, const Chain& chain) {
  const Versions& versions = problem.versions;
  std::vector<int32_t> stage_of(problem.op_count, 0);
  int32_t stage = 0;
  for (OpId o = 0; o < chain.boundary; ++o) {
    while (o > chain.ends[stage]) ++stage;
    stage_of[o] = stage;
  }
  int32_t current = std::max(0, chain.stage_count() - 1);
  for (OpId o = chain.boundary; o < problem.op_count; ++o) {
    int32_t reads = -1;
    for (const ValueId v : versions.Need(o)) {
      const OpId maker = versions.maker[v];
      if (maker >= chain.boundary || problem.rules.may_remake[v] == 0) continue;
      const OpId last = LastForwardUse(problem, v);
      const bool crosses = last > chain.ends[stage_of[maker]];
      reads = std::max(reads, stage_of[maker] + (crosses ? 1 : 0));
    }
    if (reads >= 0) current = std::min(current, reads);
    stage_of[o] = current;
  }
  return stage_of;
}

}  // namespace reprise::planner
