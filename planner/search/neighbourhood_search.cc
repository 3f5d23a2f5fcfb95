// SPDX-License-Identifier: Apache-2.0
//
// Which ops to free, and how many: neighbourhood.h solves for them.
#include <algorithm>
#include <array>
#include <set>

#include "planner/model/random.h"
#include "planner/search/neighbourhood.h"

namespace reprise::planner {
namespace {

// Ops of a neighbourhood, by kind, at first; it grows where CBC is soon done
// and shrinks where it is not.
constexpr int kFirstWidth = 24;
constexpr int kLeastWidth = 6;
constexpr int kMostWidth = 300;
// Neighbourhoods without a gain after which the list is left as it is.
constexpr int kMostFailures = 100;
// Execs looked at for the re-runs of one place.
constexpr int kPlaceSpan = 600;

class Neighbourhoods {
 public:
  Neighbourhoods(const Problem& problem, const Blocks& blocks,
                 const NeighbourhoodOptions& options, std::vector<OpId>& execs,
                 Archive& archive, Effort& effort)
      : problem_(problem),
        blocks_(blocks),
        options_(options),
        execs_(execs),
        archive_(archive),
        effort_(effort),
        random_(options.seed),
        list_(problem) {
    for (OpId o = 0; o < problem.op_count; ++o) {
      if (Neighbourhood::MayFree(problem, o)) free_.push_back(o);
    }
    width_.fill(kFirstWidth);
  }

  void Run() {
    list_.Assign(execs_);
    if (free_.empty() || !list_.valid() ||
        list_.PeakBytes() > options_.budget_bytes) {
      return;
    }
    const int64_t begin = effort_.ticks();
    int failures = 0;
    while (failures < kMostFailures && !effort_.Over() &&
           effort_.ticks() - begin < options_.ticks &&
           list_.time_ns() > options_.good_enough_ns) {
      ++failures;
      const int kind = random_.Below(3);
      const std::vector<OpId> ops = WithVersions(Choose(kind));
      effort_.Spend(1000);
      if (ops.empty() || !tried_.insert(ops).second) continue;
      if (Try(ops, width_[kind])) failures = 0;
    }
  }

 private:
  // True where the list became better.
  bool Try(const std::vector<OpId>& ops, int& width) {
    Neighbourhood part(problem_, list_, ops, options_.budget_bytes);
    effort_.Spend(static_cast<int64_t>(execs_.size()) +
                  10 * int64_t{part.column_count()});
    NeighbourhoodLimits limits;
    limits.should_stop = [this] { return effort_.StopNow(); };
    if (part.column_count() > limits.most_columns) {
      width = std::max(kLeastWidth, width * 7 / 8);
      return false;
    }
    const NeighbourhoodResult result = part.Solve(limits);
    effort_.Spend(result.ticks);
    if (!result.finished) {
      width = std::max(kLeastWidth, width * 7 / 8);
    } else if (result.execs.empty()) {
      width = std::min(kMostWidth, width * 5 / 4);
    }
    return !result.execs.empty() && Take(result.execs);
  }

  bool Take(const std::vector<OpId>& execs) {
    const StatusOr<Evaluation> evaluation = Evaluate(
        *problem_.graph,
        WithFrees(*problem_.graph, execs, problem_.capabilities.free_policy),
        problem_.capabilities);
    if (!evaluation.ok() || evaluation->peak_bytes > options_.budget_bytes ||
        evaluation->time_ns >= list_.time_ns()) {
      return false;
    }
    archive_.Add(evaluation->peak_bytes, evaluation->time_ns, execs,
                 "neighbourhood");
    execs_ = execs;
    list_.Assign(execs_);
    tried_.clear();
    return true;
  }

  std::vector<OpId> Choose(int kind) {
    if (kind == 1 && !blocks_.runs.empty()) return TwoInstances();
    return kind == 2 ? Place() : Window();
  }

  // Neighbours in base order.
  std::vector<OpId> Window() {
    const int64_t all = static_cast<int64_t>(free_.size());
    const int64_t count = std::min<int64_t>(width_[0], all);
    const int64_t begin = random_.Below(all - count + 1);
    return {free_.begin() + begin, free_.begin() + begin + count};
  }

  // The same places of two instances of a block.
  std::vector<OpId> TwoInstances() {
    const BlockRun& run =
        blocks_.runs[random_.Below(static_cast<int64_t>(blocks_.runs.size()))];
    const int32_t one = random_.Below(run.count);
    const int32_t two = random_.Below(run.count);
    const int32_t count = std::min<int32_t>(run.period, width_[1] / 2);
    const int32_t first = random_.Below(run.period - count + 1);
    std::vector<OpId> ops;
    for (const int32_t instance : {one, two}) {
      const OpId begin = run.begin + instance * run.period + first;
      for (OpId o = begin; o < begin + count; ++o) ops.push_back(o);
    }
    return ops;
  }

  // Ops of re-runs near each other.
  std::vector<OpId> Place() {
    const std::vector<ExecList::Node>& reruns = list_.reruns();
    std::vector<OpId> ops;
    if (reruns.empty()) return ops;
    ExecList::Node node =
        reruns[random_.Below(static_cast<int64_t>(reruns.size()))];
    for (int i = 0; i < kPlaceSpan && node != list_.End(); ++i) {
      if (list_.IsRerun(node)) ops.push_back(list_.OpOf(node));
      if (static_cast<int>(ops.size()) >= width_[2]) break;
      node = list_.Move(node, 1);
    }
    return ops;
  }

  // Ascending, with whoever makes another version of what they make: one is of
  // little use without the other.
  std::vector<OpId> WithVersions(const std::vector<OpId>& chosen) const {
    const Versions& versions = problem_.versions;
    std::vector<OpId> ops;
    for (const OpId o : chosen) {
      for (const ValueId made : versions.Make(o)) {
        const StorageId s = versions.storage[made];
        for (ValueId v = versions.first_value[s]; v <= versions.Last(s); ++v) {
          ops.push_back(versions.maker[v]);
        }
      }
    }
    std::sort(ops.begin(), ops.end());
    ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
    return ops;
  }

  const Problem& problem_;
  const Blocks& blocks_;
  const NeighbourhoodOptions& options_;
  std::vector<OpId>& execs_;
  Archive& archive_;
  Effort& effort_;
  Random random_;
  ExecList list_;
  std::vector<OpId> free_;  // ops that may be freed
  std::array<int, 3> width_;
  std::set<std::vector<OpId>> tried_;  // of this list
};

}  // namespace

void SearchNeighbourhoods(const Problem& problem, const Blocks& blocks,
                          const NeighbourhoodOptions& options,
                          std::vector<OpId>& execs, Archive& archive,
                          Effort& effort) {
  if (!MipAvailable()) return;
  Neighbourhoods(problem, blocks, options, execs, archive, effort).Run();
}

}  // namespace reprise::planner
