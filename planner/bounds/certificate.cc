// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/certificate.h"

#include <algorithm>
#include <numeric>

#include "planner/bounds/pebble.h"
#include "planner/bounds/screen.h"

namespace reprise::planner {
namespace {

// At most this many windows are kept; others are rebuilt. Each holds O(ops)
// memory.
constexpr size_t kMostKept = 48;

}  // namespace

bool IsProven(int64_t base_time_ns, int64_t added_ns, int64_t bound_ns) {
  return added_ns - bound_ns <= added_ns / 500'000 + base_time_ns / 100'000'000;
}

bool IsProven(const Problem& problem, int64_t added_ns, int64_t bound_ns) {
  return IsProven(problem.base.time_ns, added_ns, bound_ns);
}

Certificate::Certificate(const Problem& problem, int64_t budget_bytes,
                         Effort& effort, Exchange* exchange)
    : problem_(problem),
      budget_bytes_(budget_bytes),
      effort_(effort),
      exchange_(exchange),
      ceiling_(problem, budget_bytes),
      infeasible_(LargestWorkingSet(problem)) {}

WindowBound& Certificate::At(OpId at) {
  if (windows_.count(at) == 0 && windows_.size() >= kMostKept) windows_.clear();
  std::unique_ptr<WindowBound>& window = windows_[at];
  if (window == nullptr) window = std::make_unique<WindowBound>(problem_, at);
  return *window;
}

void Certificate::Try(OpId at) {
  if (tried_.count(at) != 0) return;
  WindowBound& window = At(at);
  const int64_t before = window.ticks();
  const WindowResult& result = tried_[at] = window.Solve(budget_bytes_);
  effort_.Spend(window.ticks() - before);
  std::vector<StorageId> storages;
  for (const ValueId v : window.forced()) {
    storages.push_back(problem_.versions.storage[v]);
  }
  for (const StorageId s : problem_.Writes(at)) storages.push_back(s);
  Prove(at, result.least_budget_bytes, std::move(storages));
  Raise(result.added_ns, {.windows = {at}});
  if (result.has_keep_set) {
    ceiling_.Lower(result.keep_set.recomputed);
    effort_.Spend(problem_.op_count);
  }
}

void Certificate::Raise(int64_t added_ns, ProofSource source) {
  if (added_ns <= added_ns_) return;
  added_ns_ = added_ns;
  source_ = std::move(source);
}

void Certificate::Prove(OpId at, int64_t least_bytes,
                        std::vector<StorageId> storages) {
  if (least_bytes <= infeasible_.smallest_budget_bytes) return;
  infeasible_.smallest_budget_bytes = least_bytes;
  infeasible_.blocking_op = at;
  infeasible_.windows.clear();
  SortBySize(problem_, storages);
  infeasible_.storages = std::move(storages);
}

std::vector<OpId> Certificate::TriedByBound() const {
  std::vector<OpId> order;
  for (const auto& [at, result] : tried_) order.push_back(at);
  std::stable_sort(order.begin(), order.end(), [&](OpId a, OpId b) {
    return tried_.at(a).added_ns > tried_.at(b).added_ns;
  });
  return order;
}

void Certificate::TryPebbling(int64_t ticks) {
  const std::vector<int64_t> sets = WorkingSets(problem_);
  std::vector<OpId> order(problem_.op_count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](OpId a, OpId b) { return sets[a] > sets[b]; });
  int64_t spent = 0;
  for (const int states : {50, 1000, 20'000}) {
    for (const OpId op : order) {
      if (spent > ticks || effort_.Over() || impossible()) return;
      if (2 * sets[op] < budget_bytes_) break;
      const PebbleResult result = LeastPeakOf(
          problem_, op, budget_bytes_, states, (2 * ticks - spent) / 30,
          [this] { return effort_.StopNow(); });
      // Sets are kept in a map, so visiting one costs as much as visiting many
      // arcs.
      spent += 30 * result.ticks;
      effort_.Spend(30 * result.ticks);
      Prove(op, result.least_bytes, StoragesOf(problem_, op));
    }
  }
}

WindowResult Certificate::KeepSetFor(OpId at, int64_t budget_bytes,
                                     const std::vector<ValueId>& saved,
                                     const std::vector<int64_t>& priced) {
  WindowBound& window = At(at);
  const int64_t before = window.ticks();
  WindowResult result = window.SolveSaving(budget_bytes, saved, priced);
  effort_.Spend(window.ticks() - before);
  return result;
}

std::vector<OpId> LocalPeaks(const std::vector<int64_t>& bytes, int count,
                             int apart) {
  std::vector<OpId> order(bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](OpId a, OpId b) { return bytes[a] > bytes[b]; });
  std::vector<uint8_t> taken(bytes.size(), 0);
  std::vector<OpId> peaks;
  for (const OpId o : order) {
    if (static_cast<int>(peaks.size()) >= count) break;
    if (taken[o] != 0) continue;
    peaks.push_back(o);
    const OpId end =
        std::min<OpId>(static_cast<OpId>(bytes.size()) - 1, o + apart);
    for (OpId near = std::max(0, o - apart); near <= end; ++near) {
      taken[near] = 1;
    }
  }
  return peaks;
}

}  // namespace reprise::planner
