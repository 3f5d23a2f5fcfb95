// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/segments.h"

#include <algorithm>
#include <cstdint>

namespace reprise::planner {

std::vector<ValueId> CrossingValues(const Problem& problem,
                                    const std::vector<OpId>& last,
                                    std::vector<OpId> boundary) {
  const Versions& versions = problem.versions;
  for (OpId o = problem.first_backward; o-- > 0;) {
    if (boundary[o] != o) boundary[o] = boundary[o + 1];
  }
  std::vector<ValueId> values;
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    if (last[v] != kNoOp && boundary[versions.maker[v] + 1] <= last[v]) {
      values.push_back(v);
    }
  }
  return values;
}

std::vector<int64_t> CheaperNearTurn(const Problem& problem) {
  // A value at the turn counts 1 / (1 + kTilt) of its bytes, and one a sixteenth
  // of the forward earlier is half way to all of them: bursts are short near the
  // turn.
  constexpr double kTilt = 0.3;
  constexpr double kBend = 16;
  const double turn = problem.first_backward;
  std::vector<int64_t> bytes;
  for (ValueId v = 0; v < problem.versions.value_count(); ++v) {
    const double far =
        std::max(0.0, turn - static_cast<double>(problem.versions.maker[v]));
    const double part = (kBend + 1) * far / (kBend * far + turn);
    bytes.push_back(
        static_cast<int64_t>(static_cast<double>(problem.BytesOf(v)) *
                             (1 + kTilt * part) / (1 + kTilt)));
  }
  return bytes;
}

std::vector<ValueId> SegmentEnds(const Problem& problem, int count) {
  const Versions& versions = problem.versions;
  const OpId end = problem.first_backward;
  // By value: its last reader in the forward.
  std::vector<OpId> last(versions.value_count(), kNoOp);
  for (OpId o = 0; o < end; ++o) {
    for (const ValueId v : versions.Need(o)) last[v] = o;
  }
  std::vector<int64_t> crossing(end + 1, 0);  // by op: bytes that reach it
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    if (last[v] == kNoOp) continue;
    crossing[versions.maker[v] + 1] += problem.BytesOf(v);
    crossing[last[v] + 1] -= problem.BytesOf(v);
  }
  for (OpId o = 1; o <= end; ++o) crossing[o] += crossing[o - 1];
  // By op: the first boundary from it on.
  std::vector<OpId> boundary(end + 1, end);
  for (int i = 1; i < count; ++i) {
    const auto begin =
        static_cast<OpId>(int64_t{end} * (2 * i - 1) / (2 * count));
    const auto stop =
        static_cast<OpId>(int64_t{end} * (2 * i + 1) / (2 * count));
    const auto first = crossing.begin() + std::max(begin, 1);
    if (stop <= std::max(begin, 1)) continue;
    const auto least = std::min_element(first, crossing.begin() + stop);
    boundary[least - crossing.begin()] =
        static_cast<OpId>(least - crossing.begin());
  }
  return CrossingValues(problem, last, boundary);
}

}  // namespace reprise::planner
