// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/many_windows.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace reprise::planner {
namespace {

// CBC looks only for solutions that beat the cutoff by at least this.
constexpr double kCutoffStep = 1e-5;
// Larger programs are not started.
constexpr int kMostColumns = 20'000;

}  // namespace

ManyWindows::ManyWindows(const Problem& problem, std::vector<OpId> windows,
                         int64_t budget_bytes, bool inside)
    : problem_(problem),
      inside_(inside),
      inside_bytes_(budget_bytes - problem.static_bytes),
      windows_(windows.size()) {
  int64_t largest = 1;
  for (const int64_t bytes : problem.bytes) largest = std::max(largest, bytes);
  byte_scale_ = MipScale(largest);
  cost_scale_ = MipScale(problem.base.time_ns) * (1 << kMipCostBits);
  for (size_t k = 0; k < windows.size(); ++k) {
    Window& window = windows_[k];
    window.at = windows[k];
    window.next = k + 1 < windows.size() ? windows[k + 1] : problem.op_count;
    // Re-runs in this segment precede the first run of an op of (at, next], or
    // the end.
    window.may_rerun = false;
    for (OpId o = window.at + 1; o <= window.next; ++o) {
      window.may_rerun = window.may_rerun || problem.rules.may_trigger[o];
    }
  }
  for (Window& window : windows_) {
    window.forced = ForcedAt(problem, window.at);
    window.saved.assign(problem.versions.value_count(), -1);
    window.again.assign(problem.op_count, -1);
    window.later.assign(problem.op_count, -1);
    window.room_bytes =
        budget_bytes - problem.static_bytes - problem.workspace[window.at];
    for (const StorageId s : problem.Writes(window.at)) {
      window.room_bytes -= problem.bytes[s];
    }
    for (ValueId v = 0; v < problem.versions.value_count(); ++v) {
      if (window.forced[v] != 0) window.room_bytes -= problem.BytesOf(v);
    }
    if (window.room_bytes < 0) out_of_room_ = true;
  }
  if (out_of_room_) return;
  // From last to first, because each window needs columns for what the next
  // carries.
  for (int k = static_cast<int>(windows_.size()); k-- > 0;) AddColumns(k);
  for (int k = 0; k < static_cast<int>(windows_.size()); ++k) AddRows(k);
}

// Adds columns for the values needed from this window on, for what recomputing
// them needs, and for what the next window carries.
void ManyWindows::AddColumns(int k) {
  const Versions& versions = problem_.versions;
  Window& window = windows_[k];
  const bool last = k + 1 == static_cast<int>(windows_.size());
  const auto add_value = [&](ValueId v) {
    if (versions.maker[v] >= window.at || window.forced[v] != 0 ||
        window.saved[v] >= 0 || problem_.BytesOf(v) == 0) {
      return;
    }
    window.saved[v] = program_.AddColumn(0, 0, 1, /*whole=*/true);
    window.values.push_back(v);
  };
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    for (const OpId use : problem_.Uses(v)) {
      if (use >= window.at) add_value(v);
    }
  }
  if (!last) {
    const Window& next = windows_[k + 1];
    for (const ValueId v : next.values) add_value(v);
    for (ValueId v = 0; v < versions.value_count(); ++v) {
      if (next.forced[v] != 0) add_value(v);
    }
  }
  // Inside the segment, values present for `at`, and those that `at` makes, may
  // be discarded and recomputed.
  std::vector<ValueId> also;
  if (inside_ && !last && window.may_rerun) {
    const Window& next = windows_[k + 1];
    for (ValueId v = 0; v < versions.value_count(); ++v) {
      if (!problem_.rules.may_remake[v] || problem_.BytesOf(v) == 0) continue;
      if (next.saved[v] < 0 && next.forced[v] == 0) continue;
      const OpId maker = versions.maker[v];
      if (maker == window.at && window.again[maker] < 0) {
        window.again[maker] = program_.AddColumn(
            static_cast<double>(problem_.rules.rerun_ns[maker]) * cost_scale_,
            0, 1, /*whole=*/false);
      }
      if (maker < window.at && window.forced[v] != 0) also.push_back(v);
    }
  }
  // `values` grows during this loop: a breadth-first search backwards.
  for (size_t i = 0; i < window.values.size() + also.size(); ++i) {
    const ValueId v =
        i < also.size() ? also[i] : window.values[i - also.size()];
    const OpId maker = versions.maker[v];
    if (!problem_.rules.may_remake[v] || window.later[maker] >= 0) continue;
    const double cost =
        static_cast<double>(problem_.rules.rerun_ns[maker]) * cost_scale_;
    if (window.may_rerun) {
      window.again[maker] = program_.AddColumn(cost, 0, 1, /*whole=*/false);
    }
    if (last) {
      window.later[maker] = window.again[maker];
    } else {
      window.later[maker] = program_.AddColumn(0, 0, 1, /*whole=*/false);
    }
    for (const ValueId u : versions.Need(maker)) add_value(u);
  }
}

int32_t ManyWindows::RerunColumn(const Window& window, bool later,
                                 ValueId v) const {
  if (!problem_.rules.may_remake[v]) return -1;
  const OpId maker = problem_.versions.maker[v];
  return later ? window.later[maker] : window.again[maker];
}

void ManyWindows::AddPresence(const Window& window, bool later, ValueId v,
                              int32_t x, double bound) {
  if (window.saved[v] < 0) return;  // forced, or of 0 bytes: always there
  program_.AddEntry(window.saved[v], 1);
  const int32_t rerun = RerunColumn(window, later, v);
  if (rerun >= 0) program_.AddEntry(rerun, 1);
  if (x >= 0) program_.AddEntry(x, -1);
  program_.CloseRow(bound, kMipInfinity);
}

void ManyWindows::AddRows(int k) {
  const Versions& versions = problem_.versions;
  const Window& window = windows_[k];
  const bool last = k + 1 == static_cast<int>(windows_.size());

  // (memory), plus half a byte and the solver's tolerance.
  for (const ValueId v : window.values) {
    program_.AddEntry(window.saved[v],
                      static_cast<double>(problem_.BytesOf(v)) * byte_scale_);
  }
  for (OpId o = 0; o < problem_.op_count; ++o) {
    const int64_t state = problem_.graph->ops[o].state_bytes;
    if (problem_.graph->ops[o].kind != OpKind::kSeeded || state == 0) continue;
    if (window.later[o] < 0) continue;
    program_.AddEntry(window.later[o],
                      static_cast<double>(state) * byte_scale_);
  }
  const double room = static_cast<double>(window.room_bytes);
  program_.CloseRow(-kMipInfinity, (room + 0.5 + room * 1e-9) * byte_scale_);

  for (const ValueId v : window.values) {
    bool first = false, future = false;
    for (const OpId use : problem_.Uses(v)) {
      first = first || (use >= window.at && (last || use < window.next));
      future = future || use >= window.at;
    }
    if (first) AddPresence(window, /*later=*/false, v, -1, 1);
    if (future && !(first && last)) {
      AddPresence(window, /*later=*/true, v, -1, 1);
    }
    if (last) continue;
    const Window& next = windows_[k + 1];
    if (next.saved[v] >= 0) {
      AddPresence(window, /*later=*/false, v, next.saved[v], 0);
    } else if (next.forced[v] != 0 && !first) {
      AddPresence(window, /*later=*/false, v, -1, 1);
    }
  }
  for (OpId o = 0; o < problem_.op_count; ++o) {
    for (const ValueId u : versions.Need(o)) {
      if (window.again[o] >= 0) {
        AddPresence(window, /*later=*/false, u, window.again[o], 0);
      }
      if (!last && window.later[o] >= 0) {
        AddPresence(window, /*later=*/true, u, window.later[o], 0);
      }
    }
    if (!last && window.later[o] >= 0) {
      if (window.again[o] >= 0) program_.AddEntry(window.again[o], 1);
      if (windows_[k + 1].later[o] >= 0) {
        program_.AddEntry(windows_[k + 1].later[o], 1);
      }
      program_.AddEntry(window.later[o], -1);
      program_.CloseRow(0, kMipInfinity);
    }
  }
  // (version)
  for (const ValueId v : window.values) {
    const StorageId s = versions.storage[v];
    const ValueId begin = versions.first_value[s];
    const ValueId end = versions.first_value[s + 1];
    if (end - begin < 2) continue;
    bool lowest = true, forced = false;
    for (ValueId other = begin; other < end; ++other) {
      if (window.saved[other] >= 0 && other < v) lowest = false;
      if (window.forced[other] != 0) forced = true;
    }
    if (!lowest) continue;
    for (ValueId other = begin; other < end; ++other) {
      if (window.saved[other] >= 0) {
        program_.AddEntry(window.saved[other], 1);
      }
    }
    program_.CloseRow(-kMipInfinity, forced ? 0 : 1);
  }
  // (runs), only once
  const int most = problem_.capabilities.max_runs;
  if (k > 0 || most <= 0) return;
  for (OpId o = 0; o < problem_.op_count; ++o) {
    int columns = 0;
    for (const Window& other : windows_) columns += other.again[o] >= 0;
    if (columns < most) continue;
    for (const Window& other : windows_) {
      if (other.again[o] >= 0) program_.AddEntry(other.again[o], 1);
    }
    program_.CloseRow(-kMipInfinity, most - 1);
  }
}

// Costs are integers, so what remains after the tolerance is rounded up.
int64_t ManyWindows::AddedNs(double bound) const {
  const double proven = bound / cost_scale_;
  const double safe = proven - kMipTolerance * std::max(1.0, proven) -
                      2 * kCutoffStep / cost_scale_;
  return std::max<int64_t>(0, static_cast<int64_t>(std::ceil(safe)));
}

// Cost of simplex iterations in ticks, as measured.
int64_t ManyWindows::Ticks(const MipAnswer& answer) const {
  const int64_t per_iteration = 500 + program_.row_count() / 2;
  return 50 * static_cast<int64_t>(program_.column.size()) +
         answer.iterations * per_iteration;
}

int64_t ManyWindows::RootTicks() const {
  const int64_t columns = program_.column_count();
  return 40 * columns * std::min<int64_t>(program_.row_count(), 2 * columns);
}

ManyWindowsResult ManyWindows::Solve(const ManyWindowsLimits& limits) {
  ManyWindowsResult result{.solved = out_of_room_, .impossible = out_of_room_};
  if (out_of_room_ || program_.column_count() > kMostColumns) return result;
  MipOptions options{.most_nodes = limits.most_nodes,
                     .should_stop = limits.should_stop};
  if (limits.incumbent_ns >= 0) {
    options.cutoff = static_cast<double>(limits.incumbent_ns) * cost_scale_;
  }
  // Every round is a relaxation of the next, so the best of all their bounds
  // holds.
  MipAnswer answer;
  for (int round = 1;; ++round) {
    answer = limits.relaxed ? SolveLp(program_, limits.should_stop)
                            : SolveMip(program_, options);
    result.ticks += (limits.relaxed ? 0 : RootTicks()) + Ticks(answer);
    result.finished = !limits.relaxed && answer.finished();
    if (answer.stopped()) return result;
    result.solved = true;
    result.impossible = answer.infeasible();
    if (result.impossible) return result;
    result.added_ns = std::max(result.added_ns, AddedNs(answer.bound));
    if (!answer.has_solution || limits.relaxed) return result;
    if (!inside_ || round >= limits.most_rounds) break;
    if (AddInsideRows(&answer.solution) == 0) break;
    result.finished = false;
  }
  result.has_keep_sets = true;
  const auto is_one = [&](int32_t column) {
    return column >= 0 && answer.solution[column] > 0.5;
  };
  for (const Window& window : windows_) {
    result.keep_sets.push_back(MakeKeepSet(
        problem_, window.at, [&](ValueId v) { return is_one(window.saved[v]); },
        [&](OpId o) { return is_one(window.again[o]); }));
  }
  return result;
}

}  // namespace reprise::planner
