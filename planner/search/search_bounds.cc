// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "planner/construct/construct.h"
#include "planner/model/exec_list.h"
#include "planner/search/search.h"

namespace reprise::planner {
void Search::Combine(int64_t ticks) {
  certificate_.Combine(
      Best() == nullptr ? -1 : BestAdded(), ticks,
      [this](const std::vector<KeepSet>& keep_sets, int64_t& incumbent_ns) {
        std::vector<OpId> peaks = StartFrom(keep_sets, "windows");
        Trade();
        if (Best() != nullptr) incumbent_ns = BestAdded();
        return peaks;
      },
      Touched(/*count=*/16, /*apart=*/1));
}

std::vector<OpId> Search::Touched(int count, int apart) const {
  if (Best() == nullptr) return {};
  std::vector<int64_t> bytes(problem_.op_count, 0);
  ExecList list(problem_);
  list.Assign(Best()->execs);
  for (OpId o = 0; o < problem_.op_count; ++o) bytes[o] = list.BytesAt(o);
  std::vector<OpId> touched = LocalPeaks(bytes, count, apart);
  std::erase_if(touched, [&](OpId at) {
    return bytes[at] < request_.budget_bytes / 64 * 63;
  });
  return touched;
}

void Search::Refute(int64_t ticks) {
  certificate_.Refute(
      BestAdded(), ticks,
      [this](const std::vector<KeepSet>& keep_sets, int64_t& incumbent_ns) {
        std::vector<OpId> peaks = StartFrom(keep_sets, "windows");
        incumbent_ns = BestAdded();
        return peaks;
      });
}

Generated Search::GenerateKeeping(const std::vector<KeepSet>& keep_sets,
                                  Retention tail) {
  Flags flags = BaseFlags(problem_);
  for (const KeepSet& keep_set : keep_sets) {
    ApplyKeepSet(problem_, keep_set, tail, flags);
  }
  return generator_.Generate(flags, effort_);
}

std::vector<OpId> Search::StartFrom(const std::vector<KeepSet>& keep_sets,
                                    const char* solver) {
  std::vector<OpId> peaks;
  for (const Retention tail : {Retention::kAgain, Retention::kSave}) {
    const Generated generated = GenerateKeeping(keep_sets, tail);
    if (!generated.valid) continue;
    archive_.Add(generated, generator_.execs(), solver);
    // Starts from windows come first: they are often a few moves from optimal.
    starts_.insert(starts_.begin(), generator_.execs());
    if (std::ssize(starts_) > kMostStarts) starts_.pop_back();
    if (generated.peak_bytes <= request_.budget_bytes) return {};
    if (generated.peak_at != kNoOp && generated.peak_at < problem_.op_count) {
      peaks.push_back(generated.peak_at);
    }
    std::vector<int64_t> bytes(problem_.op_count);
    for (OpId o = 0; o < problem_.op_count; ++o) {
      bytes[o] = generator_.bytes_at()[generator_.first_exec()[o]];
    }
    for (const OpId at :
         LocalPeaks(bytes, 2, std::max(1, problem_.op_count / 64))) {
      if (bytes[at] > request_.budget_bytes) peaks.push_back(at);
    }
  }
  std::sort(peaks.begin(), peaks.end());
  peaks.erase(std::unique(peaks.begin(), peaks.end()), peaks.end());
  return peaks;
}

}  // namespace reprise::planner
