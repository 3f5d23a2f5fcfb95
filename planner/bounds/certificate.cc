// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/certificate.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "planner/bounds/certify_tree.h"
#include "planner/bounds/pebble.h"
#include "planner/bounds/screen.h"

namespace reprise::planner {
namespace {

// More windows than this are built again instead of kept: they hold O(ops)
// memory each.
constexpr size_t kMostKept = 48;
constexpr size_t kMostSharpened = 12;
constexpr int kMostCandidates = 20;
constexpr int kSpread = 60;
constexpr size_t kMostTouched = 12;
constexpr size_t kMostTogether = 16;
constexpr size_t kMostRefuting = 8;
// A guess at an optimum goes so much of the way from its bound to the best
// plan.
constexpr int64_t kGuess = 8;
// Of the ticks for an optimum to the first tree; of those for a refutation to
// all that comes before it.
constexpr int64_t kTree = 3;
constexpr size_t kMostPairs = 6;
constexpr int kLongestRun = 16;

}  // namespace

bool IsProven(int64_t base_time_ns, int64_t added_ns, int64_t bound_ns) {
  return added_ns - bound_ns <= added_ns / 500'000 + base_time_ns / 100'000'000;
}

bool IsProven(const Problem& problem, int64_t added_ns, int64_t bound_ns) {
  return IsProven(problem.base.time_ns, added_ns, bound_ns);
}

Certificate::Certificate(const Problem& problem, int64_t budget_bytes,
                         Effort& effort)
    : problem_(problem),
      budget_bytes_(budget_bytes),
      effort_(effort),
      ceiling_(problem, budget_bytes),
      infeasible_(LargestWorkingSet(problem)) {}

WindowBound& Certificate::At(OpId at) {
  std::unique_ptr<WindowBound>& window = windows_[at];
  if (window == nullptr) {
    if (windows_.size() > kMostKept) {
      windows_.clear();
      return *(windows_[at] = std::make_unique<WindowBound>(problem_, at));
    }
    window = std::make_unique<WindowBound>(problem_, at);
  }
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
  std::sort(storages.begin(), storages.end(), [&](StorageId a, StorageId b) {
    if (problem_.bytes[a] != problem_.bytes[b]) {
      return problem_.bytes[a] > problem_.bytes[b];
    }
    return a < b;
  });
  infeasible_.storages = std::move(storages);
}

WindowResult Certificate::Sharpen(int64_t enough_ns, int64_t ticks) {
  std::vector<OpId> order;
  for (const auto& [at, result] : tried_) order.push_back(at);
  std::stable_sort(order.begin(), order.end(), [&](OpId a, OpId b) {
    return tried_[a].added_ns > tried_[b].added_ns;
  });
  if (order.size() > kMostSharpened) order.resize(kMostSharpened);
  const int64_t begin = effort_.ticks();
  WindowResult best;
  for (size_t i = 0; i < order.size(); ++i) {
    const OpId at = order[i];
    const int64_t left = ticks - (effort_.ticks() - begin);
    if (added_ns_ >= enough_ns || left <= 0 || effort_.Over()) break;
    // Windows whose bound is closest to the best get the largest share.
    const int64_t share = left / 3;
    if (sharpened_[at] > 0 && sharpened_[at] * 2 > share) continue;
    sharpened_[at] = std::max<int64_t>(1, share);
    WindowBound& window = At(at);
    const int64_t before = window.ticks();
    const WindowResult result =
        window.SolveExactly(budget_bytes_, enough_ns, share);
    effort_.Spend(window.ticks() - before);
    tried_[at].added_ns = std::max(tried_[at].added_ns, result.added_ns);
    if (result.has_keep_set && result.added_ns >= best.added_ns) best = result;
    Raise(result.added_ns, {.windows = {at}});
  }
  return best;
}

// The local peaks of the base order above the budget, highest first, and where
// the best plan known touches it. Neighbours of a peak say the same as the
// peak.
std::vector<OpId> Certificate::Candidates() const {
  const int apart = problem_.op_count / kSpread;
  std::vector<OpId> candidates;
  for (const OpId at :
       LocalPeaks(problem_.base_bytes, kMostCandidates, apart)) {
    if (problem_.base_bytes[at] > budget_bytes_) candidates.push_back(at);
  }
  for (const OpId at : touched_) {
    const bool near =
        std::any_of(candidates.begin(), candidates.end(),
                    [&](OpId o) { return std::abs(o - at) <= apart; });
    if (!near) candidates.push_back(at);
  }
  return candidates;
}

void Certificate::Touch(OpId at) {
  Try(at);
  if (std::find(touched_.begin(), touched_.end(), at) != touched_.end()) return;
  touched_.push_back(at);
  together_grows_ = true;
  if (touched_.size() > kMostTouched) touched_.erase(touched_.begin());
}

ManyWindowsResult Certificate::SolveTogether(const std::vector<OpId>& windows,
                                             int64_t incumbent_ns,
                                             int64_t ticks, How how) {
  ManyWindowsLimits limits{.incumbent_ns = incumbent_ns};
  limits.should_stop = [this] { return effort_.StopNow(); };
  const bool relaxed = how == How::kRelaxed, inside = how == How::kInside;
  ManyWindows program(problem_, windows, budget_bytes_, inside);
  // Rows inside segments take a second round at least.
  const int64_t root = program.RootTicks() * (inside ? 2 : 1);
  if (!relaxed && root > ticks) return {};
  if (inside) {
    limits.most_rounds = static_cast<int>(
        std::clamp<int64_t>(2 * ticks / std::max<int64_t>(1, root), 2, 6));
  }
  // A node re-solves the LP after a change of one bound.
  const int64_t per_node = 1 + program.program().row_count() * int64_t{500};
  limits.most_nodes =
      static_cast<int>(std::clamp<int64_t>(ticks / per_node, 10, 1'000'000));
  ManyWindowsResult result =
      relaxed ? program.Relax(limits) : program.Solve(limits);
  effort_.Spend(result.ticks +
                static_cast<int64_t>(program.program().column.size()));
  if (result.solved && result.impossible) {
    // A proof for this budget, not for a smaller one than is left.
    Prove(windows.front(), budget_bytes_ + 1, {});
    if (infeasible_.smallest_budget_bytes == budget_bytes_ + 1) {
      infeasible_.windows = windows;
      infeasible_.inside = inside;
    }
  } else if (result.solved) {
    Raise(result.added_ns, {.windows = windows, .inside = inside});
  }
  return result;
}

// All windows at once are too many for a MIP: the first that were chosen, as
// many as the ticks allow.
void Certificate::SolvePart(int64_t incumbent_ns, int64_t ticks,
                            const PeaksOf& peaks_of) {
  if (together_finished_) return;
  for (size_t count = together_order_.size(); count > part_solved_; --count) {
    std::vector<OpId> windows(
        together_order_.begin(),
        together_order_.begin() + static_cast<int64_t>(count));
    std::sort(windows.begin(), windows.end());
    const ManyWindowsResult result =
        SolveTogether(windows, incumbent_ns, ticks, How::kWhole);
    if (!result.solved) continue;
    part_solved_ = count;
    if (result.has_keep_sets) peaks_of(result.keep_sets, incumbent_ns);
    return;
  }
}

// Just after a peak the re-runs have least room: what stays from a window to
// the next op is there while they run. Pairs first, then longer runs around the
// best of them.
void Certificate::CombineNeighbours(int64_t incumbent_ns, int64_t ticks,
                                    const PeaksOf& peaks_of) {
  const int64_t begin = effort_.ticks();
  std::vector<OpId> order;
  for (const auto& [at, result] : tried_) {
    if (at + 1 < problem_.op_count && result.added_ns > 0) order.push_back(at);
  }
  std::stable_sort(order.begin(), order.end(), [&](OpId a, OpId b) {
    return tried_[a].added_ns > tried_[b].added_ns;
  });
  if (order.size() > kMostPairs) order.resize(kMostPairs);
  for (int length = 2; length <= kLongestRun; length *= 2) {
    for (const OpId at : order) {
      const int64_t left = ticks - (effort_.ticks() - begin);
      if (left <= 0 || effort_.Over() || impossible()) return;
      if (incumbent_ns >= 0 && IsProven(problem_, incumbent_ns, added_ns_)) {
        return;
      }
      if (run_length_[at] >= length) continue;
      std::vector<OpId> windows;
      const OpId first = std::max(0, at - (length / 2 - 1));
      for (OpId o = first; o <= at + length / 2 && o < problem_.op_count; ++o) {
        windows.push_back(o);
      }
      const ManyWindowsResult result =
          SolveTogether(windows, incumbent_ns, left / 2, How::kInside);
      if (!result.solved) continue;
      run_length_[at] = length;
      run_ns_[at] = std::max(run_ns_[at], result.added_ns);
      if (result.has_keep_sets) peaks_of(result.keep_sets, incumbent_ns);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](OpId a, OpId b) { return run_ns_[a] > run_ns_[b]; });
    if (order.size() > 1) order.resize(1);
  }
}

void Certificate::Combine(int64_t incumbent_ns, int64_t ticks,
                          const PeaksOf& peaks_of, bool neighbours) {
  if (!MipAvailable() || impossible()) return;
  const int64_t begin = effort_.ticks();
  const auto left = [&] { return ticks - (effort_.ticks() - begin); };
  const auto enough = [&] {
    return effort_.Over() || impossible() || left() <= 0 ||
           (incumbent_ns >= 0 && IsProven(problem_, incumbent_ns, added_ns_));
  };
  if (neighbours) CombineNeighbours(incumbent_ns, ticks / 2, peaks_of);
  while (!enough()) {
    std::vector<OpId> proposals = together_lacks_;
    const int64_t share = left() * 3 / 4;
    if (!together_.empty() && !together_finished_ && together_ticks_ < share) {
      together_ticks_ = share;
      const ManyWindowsResult result =
          SolveTogether(together_, incumbent_ns, share, How::kWhole);
      together_finished_ = result.finished;
      if (result.has_keep_sets) {
        proposals = together_lacks_ = peaks_of(result.keep_sets, incumbent_ns);
        // Nothing says where it exceeds the budget: whoever asks may find a
        // schedule near it sooner than another window is found here.
        if (together_finished_ && proposals.empty()) break;
      }
    }
    if (together_.size() >= kMostTogether || enough()) break;
    const auto is_in = [&](OpId at) {
      return std::binary_search(together_.begin(), together_.end(), at);
    };
    proposals.erase(std::remove_if(proposals.begin(), proposals.end(), is_in),
                    proposals.end());
    // Where the solution exceeds the budget it lacks a window; else whichever
    // candidate raises the LP.
    const bool lacks = !proposals.empty();
    if (!lacks) {
      if (!together_grows_) {
        SolvePart(incumbent_ns, left(), peaks_of);
        break;
      }
      proposals = Candidates();
    }
    OpId chosen = lacks ? proposals.front() : kNoOp;
    int64_t chosen_ns = together_ns_;
    bool all = true;
    for (const OpId at : proposals) {
      if (is_in(at)) continue;
      // A scan that ran out of ticks goes on where it ended.
      const auto [scanned, fresh] = together_scanned_.try_emplace(at, 0);
      if (fresh) {
        if (enough()) {
          together_scanned_.erase(scanned);
          all = false;
          break;
        }
        std::vector<OpId> windows = together_;
        windows.insert(std::upper_bound(windows.begin(), windows.end(), at),
                       at);
        scanned->second =
            SolveTogether(windows, incumbent_ns, 0, How::kRelaxed).added_ns;
      }
      if (scanned->second <= chosen_ns) continue;
      chosen_ns = scanned->second;
      chosen = at;
    }
    if (!all) break;
    if (chosen == kNoOp) {
      together_grows_ = false;
      continue;
    }
    together_.insert(
        std::upper_bound(together_.begin(), together_.end(), chosen), chosen);
    together_order_.push_back(chosen);
    together_scanned_.clear();
    together_ns_ = chosen_ns;
    together_ticks_ = 0;
    together_finished_ = false;
    together_lacks_.clear();
  }
}

Refutation Certificate::RefuteBy(const std::vector<OpId>& windows,
                                 int64_t added_ns, bool to_optimum,
                                 int64_t ticks) {
  if (!facts_) {
    auto facts =
        verify::ReadFacts(*problem_.graph, ExecutorOf(problem_.capabilities));
    if (!facts.ok()) return {};
    facts_.emplace(*std::move(facts));
  }
  // What linear programs and their iterations cost, in ops and arcs looked at:
  // measured.
  const auto per_solve = [](int64_t rows) { return 1000 + 25 * rows; };
  const auto per_iteration = [](int64_t rows) { return 500 + rows / 2; };
  const int64_t rows =
      static_cast<int64_t>(windows.size()) * 2 * problem_.op_count;
  CertifyLimits limits{
      .most_leaves = static_cast<int>(
          std::clamp<int64_t>(ticks / per_solve(rows), 1, 100'000)),
      .most_iterations = std::max<int64_t>(1, ticks / per_iteration(rows))};
  limits.should_stop = [this] { return effort_.StopNow(); };
  Refutation found =
      RefuteCheaper(problem_, *facts_, budget_bytes_, {.windows = windows},
                    added_ns, to_optimum, limits);
  effort_.Spend(problem_.op_count + found.solves * per_solve(found.rows) +
                found.iterations * per_iteration(found.rows));
  if (found.outcome != Refutation::Outcome::kProven) return found;
  // A tree whose bound fell on the way is no certificate: what it fixed before
  // follows from more than it proves.
  if (!found.keep_sets.empty()) found.tree.clear();
  ProofSource source{.windows = windows, .tree = std::move(found.tree)};
  if (found.added_ns == added_ns_ && source_.windows == windows &&
      !source_.inside) {
    source_ = std::move(source);
  }
  Raise(found.added_ns, std::move(source));
  return found;
}

// A tree under a bound above the optimum grows large before it meets a good
// solution, one under a bound below is soon refuted: so the bound is a guess,
// raised when it is refuted and lowered when its tree takes too long.
Refutation Certificate::OptimumOf(const std::vector<OpId>& windows,
                                  int64_t incumbent_ns, int64_t low_ns,
                                  int64_t ticks) {
  const int64_t begin = effort_.ticks();
  low_ns = std::max(low_ns, added_ns_);
  int64_t high_ns = incumbent_ns, tree_ticks = ticks / kTree;
  int64_t step_ns = (high_ns - low_ns) / kGuess;
  Refutation best;
  while (!effort_.Over()) {
    const int64_t left = ticks - (effort_.ticks() - begin);
    if (left <= 0) break;
    step_ns = std::max<int64_t>(1, step_ns);
    const int64_t guess_ns = std::min(high_ns, low_ns + step_ns);
    Refutation found =
        RefuteBy(windows, guess_ns, true, std::min(left, tree_ticks));
    const bool proven = found.outcome == Refutation::Outcome::kProven;
    if (!found.keep_sets.empty()) {
      best = std::move(found);
      if (proven) {
        RefuteBy(windows, best.added_ns, false, ticks);
        break;
      }
      high_ns = best.added_ns;
      step_ns = (high_ns - low_ns) / kGuess;
      tree_ticks *= 2;
    } else if (proven) {
      low_ns = guess_ns;
      if (guess_ns < high_ns) continue;
      best.outcome = found.outcome;
      break;
    } else {
      if (tree_ticks >= left) break;
      step_ns /= 2;
      tree_ticks *= 2;
    }
  }
  return best;
}

void Certificate::Refute(int64_t incumbent_ns, int64_t ticks,
                         const PeaksOf& peaks_of) {
  if (!MipAvailable() || tried_.empty() || incumbent_ns == refuted_ns_) return;
  const int64_t begin = effort_.ticks();
  if (refuting_.empty()) {
    OpId best = tried_.begin()->first;
    for (const auto& [at, result] : tried_) {
      if (result.added_ns > tried_.at(best).added_ns) best = at;
    }
    refuting_ = {best};
  }
  // Once these windows say almost everything, their optimum.
  bool to_optimum = false;
  int64_t root_ns = 0;
  while (refuting_.size() <= kMostRefuting) {
    const int64_t left = ticks - (effort_.ticks() - begin);
    const int64_t kept = to_optimum ? 0 : ticks / kTree * (kTree - 1);
    if (left <= kept || effort_.Over()) return;
    refuted_ns_ = incumbent_ns;
    std::vector<OpId> windows = refuting_;
    std::sort(windows.begin(), windows.end());
    const Refutation found =
        to_optimum ? OptimumOf(windows, incumbent_ns, root_ns, left)
                   : RefuteBy(windows, incumbent_ns, false, left - kept);
    if (found.keep_sets.empty()) return;
    root_ns = std::max(root_ns, found.root_ns);
    const bool is_optimum = found.outcome == Refutation::Outcome::kProven;
    const std::vector<OpId> lacks = peaks_of(found.keep_sets, incumbent_ns);
    if (is_optimum) {
      // Combine goes on from here.
      together_ = windows;
      together_order_ = refuting_;
      together_ns_ = found.root_ns;
      together_finished_ = true;
      together_lacks_ = lacks;
      together_scanned_.clear();
    }
    if (incumbent_ns < refuted_ns_) {
      is_near_ = is_optimum;
      if (is_optimum) return;
      to_optimum = true;
      continue;
    }
    // Of the windows that it lacks the one that raises the LP most.
    OpId chosen = kNoOp;
    int64_t chosen_ns = -1;
    for (const OpId at : lacks) {
      if (std::binary_search(windows.begin(), windows.end(), at)) continue;
      std::vector<OpId> more = windows;
      more.insert(std::upper_bound(more.begin(), more.end(), at), at);
      const int64_t added_ns =
          SolveTogether(more, incumbent_ns, 0, How::kRelaxed).added_ns;
      if (added_ns <= chosen_ns) continue;
      chosen_ns = added_ns;
      chosen = at;
    }
    if (chosen == kNoOp) {
      is_near_ = is_optimum;
      if (to_optimum) return;
      to_optimum = true;
      continue;
    }
    to_optimum = false;
    refuting_.push_back(chosen);
    if (!together_.empty() || refuting_.size() != 2) continue;
    // Combine begins with these.
    together_ = together_order_ = refuting_;
    std::sort(together_.begin(), together_.end());
    together_ns_ = chosen_ns;
  }
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
      const PebbleResult result =
          LeastPeakOf(problem_, op, budget_bytes_, states,
                      [this] { return effort_.StopNow(); });
      // Sets are kept in a map: one costs as much as many arcs.
      spent += 30 * result.ticks;
      effort_.Spend(30 * result.ticks);
      Prove(op, result.least_bytes, StoragesOf(problem_, op));
    }
  }
}

WindowResult Certificate::KeepSetFor(OpId at, int64_t budget_bytes) {
  return KeepSetSaving(at, budget_bytes, {});
}

WindowResult Certificate::KeepSetSaving(OpId at, int64_t budget_bytes,
                                        const std::vector<ValueId>& saved) {
  WindowBound& window = At(at);
  const int64_t before = window.ticks();
  WindowResult result = window.SolveSaving(budget_bytes, saved);
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
