// SPDX-License-Identifier: Apache-2.0
#include "planner/certify_tree.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "planner/lp.h"
#include "planner/verify/program.h"

namespace reprise::planner {
namespace {

using verify::Node;
using verify::Program;

// Multipliers keep so many bits of the base time.
constexpr int kTimeBits = 36;
constexpr int kMostShift = 60;
constexpr int kMostRounds = 8;  // of rows inside segments
constexpr int kMostColumns = 60'000;
constexpr double kWhole = 1e-6;
constexpr size_t kMostTried = 10;  // columns tried before a branching
constexpr int kTrialIterations = 40;
constexpr int kTrusted = 3;  // trials after which a column is known
// Larger certificates are not made.
constexpr int64_t kMostMultipliers = 400'000;

class ProgramTree {
 public:
  ProgramTree(const verify::Facts& facts, int64_t budget_bytes,
              const ProofSource& source, int64_t added_ns, bool refuses,
              const CertifyLimits& limits)
      : facts_(facts),
        budget_bytes_(budget_bytes),
        source_(source),
        added_ns_(refuses ? Program::kNothing : added_ns),
        limits_(limits) {
    int64_t base_ns = 1, largest = 1;
    for (const Op& op : facts.graph->ops) base_ns += op.time_ns;
    for (const Storage& storage : facts.graph->storages) {
      largest = std::max(largest, storage.bytes);
    }
    base_scale_ = MipScale(base_ns) * (1 << kMipCostBits);
    byte_scale_ = MipScale(largest);
    shift_ = std::clamp(kTimeBits - static_cast<int>(std::bit_width(
                                        static_cast<uint64_t>(base_ns))),
                        0, kMostShift);
    byte_shift_ = std::clamp(
        static_cast<int>(std::bit_width(static_cast<uint64_t>(largest))), 0,
        kMostShift - shift_);
  }

  // False: it could not be proven within the limits.
  bool Grow() {
    if (!MakeRows()) return false;
    LpSeries series(program_lp_, limits_.should_stop);
    series_ = &series;
    const bool grown = GrowFrom(0);
    series_ = nullptr;
    return grown;
  }

  // What the root alone proves.
  int64_t root_ns() const { return root_ns_; }
  const Node& root() const { return root_; }
  const std::vector<verify::InsideRow>& inside_rows() const {
    return inside_rows_;
  }
  std::vector<Node> TakeTree() { return std::move(tree_); }

 private:
  bool Build() {
    StatusOr<Program> built = Program::Build(
        facts_, budget_bytes_, source_.windows, source_.inside, inside_rows_);
    if (!built.ok()) return false;
    program_.emplace(*std::move(built));
    if (program_->column_count() > kMostColumns) return false;
    low_.assign(program_->column_count(), 0);
    high_.assign(program_->column_count(), 1);
    program_lp_ = {};
    for (int32_t j = 0; j < program_->column_count(); ++j) {
      program_lp_.AddColumn(
          static_cast<double>(program_->CostNs(j)) * base_scale_, 0, 1, false);
    }
    for (int32_t i = 0; i < program_->row_count(); ++i) {
      const double scale = ScaleOf(i);
      for (const Program::Entry& entry : program_->Row(i)) {
        program_lp_.AddEntry(entry.column,
                             static_cast<double>(entry.value) * scale);
      }
      program_lp_.CloseRow(static_cast<double>(program_->Least(i)) * scale,
                           kMipInfinity);
    }
    return true;
  }

  double ScaleOf(int32_t row) const {
    return program_->InBytes(row) ? byte_scale_ : 1;
  }

  // The program, with the rows inside segments that its relaxations violate.
  bool MakeRows() {
    if (!Build()) return false;
    if (!source_.inside) return true;
    const auto segments = static_cast<int>(source_.windows.size()) - 1;
    for (int round = 0; round < kMostRounds; ++round) {
      LpSeries series(program_lp_, limits_.should_stop);
      const LpSeries::Answer answer = series.Solve(IterationsLeft());
      iterations_ += series.iterations();
      if (answer.outcome != MipOutcome::kOptimal) break;
      const size_t before = inside_rows_.size();
      for (int k = 0; k < segments; ++k) {
        for (OpId o = 0; o < source_.windows[k + 1]; ++o) {
          const verify::InsideRow row{.segment = k, .op = o};
          const bool known = std::find(inside_rows_.begin(), inside_rows_.end(),
                                       row) != inside_rows_.end();
          if (!known && program_->ViolatesInside(k, o, answer.solution)) {
            inside_rows_.push_back(row);
          }
        }
      }
      if (inside_rows_.size() == before) break;
      if (!Build()) return false;
    }
    return true;
  }

  int IterationsLeft() const {
    return static_cast<int>(std::clamp<int64_t>(
        limits_.most_iterations - iterations_, 0, 1'000'000));
  }

  // The multipliers of an answer, rounded to what a certificate holds.
  Node LeafOf(const LpSeries::Answer& answer, bool impossible, int sign) const {
    Node leaf{
        .shift = shift_, .byte_shift = byte_shift_, .impossible = impossible};
    double scale = 1 / base_scale_;
    if (impossible) {
      // Any multiple of it proves the same.
      double largest = 0;
      for (const double y : answer.multipliers) {
        largest = std::max(largest, std::abs(y));
      }
      if (largest <= 0) return leaf;
      scale = 1024 / largest;
    }
    for (size_t i = 0; i < answer.multipliers.size(); ++i) {
      const auto row = static_cast<int32_t>(i);
      const double y = sign * answer.multipliers[i] * scale * ScaleOf(row);
      if (y <= 0) continue;
      const int shift = shift_ + (program_->InBytes(row) ? byte_shift_ : 0);
      const double value = std::round(std::ldexp(y, shift));
      if (value < 1 || value > 4e18) continue;
      leaf.multipliers.push_back({row, static_cast<int64_t>(value)});
    }
    return leaf;
  }

  int64_t Proven(const Node& leaf) const {
    const StatusOr<int64_t> proven = program_->AddedNs(leaf, low_, high_);
    return proven.ok() ? *proven : 0;
  }

  bool GrowFrom(int depth) {
    if (++leaves_ > limits_.most_leaves || IterationsLeft() == 0) return false;
    const LpSeries::Answer answer = series_->Solve(IterationsLeft());
    iterations_ = series_->iterations();
    if (answer.outcome == MipOutcome::kStopped) return false;
    if (answer.outcome == MipOutcome::kInfeasibleProven) {
      for (const int sign : {1, -1}) {
        const Node leaf = LeafOf(answer, true, sign);
        if (Proven(leaf) < added_ns_) continue;
        tree_.push_back(leaf);
        return true;
      }
      return false;
    }
    const Node leaf = LeafOf(answer, false, 1);
    const int64_t proven = Proven(leaf);
    if (depth == 0) {
      root_ns_ = proven;
      root_ = leaf;
    }
    if (proven >= added_ns_) {
      multipliers_ += static_cast<int64_t>(leaf.multipliers.size());
      if (multipliers_ > kMostMultipliers) return false;
      tree_.push_back(leaf);
      return true;
    }
    const int32_t column = Choose(answer);
    if (column < 0) return false;
    tree_.push_back({.branch = column});
    for (const int fixed : {1, 0}) {
      Fix(column, fixed);
      if (!GrowFrom(depth + 1)) return false;
    }
    Fix(column, -1);
    return true;
  }

  void Fix(int32_t column, int to) {
    low_[column] = to == 1;
    high_[column] = to != 0;
    series_->SetBounds(column, low_[column], high_[column]);
  }

  // The fractional column whose two sides raise the cost most, of the few that
  // look best; those of S first: where they are whole, the others may be.
  int32_t Choose(const LpSeries::Answer& answer) {
    std::vector<std::pair<double, int32_t>> candidates;
    for (const bool kept : {true, false}) {
      for (int32_t j = 0; j < program_->column_count(); ++j) {
        const double x = answer.solution[j];
        if (program_->IsKept(j) != kept || x < kWhole || x > 1 - kWhole) {
          continue;
        }
        const double known =
            gain_count_.count(j) != 0 ? gain_sum_[j] / gain_count_[j] : -1;
        const double distance = std::min(x, 1 - x);
        candidates.emplace_back(known >= 0 ? 1 + known : distance, j);
      }
      if (!candidates.empty()) break;
    }
    if (candidates.empty()) return -1;
    std::sort(candidates.rbegin(), candidates.rend());
    if (candidates.size() > kMostTried) candidates.resize(kMostTried);
    if (candidates.size() == 1) return candidates.front().second;
    int32_t best = -1;
    double best_score = -1;
    for (const auto& [unused, j] : candidates) {
      double score = gain_sum_[j] / std::max(1, gain_count_[j]);
      if (gain_count_[j] < kTrusted) {
        double gains[2];
        for (const int fixed : {0, 1}) {
          Fix(j, fixed);
          const LpSeries::Answer trial = series_->Solve(kTrialIterations);
          gains[fixed] = std::clamp(trial.cost - answer.cost, 0.0,
                                    1.0 * (1 << kMipCostBits));
          Fix(j, -1);
        }
        score = (gains[0] + 1e-4) * (gains[1] + 1e-4);
        gain_sum_[j] += score;
        ++gain_count_[j];
      }
      if (score > best_score) {
        best_score = score;
        best = j;
      }
    }
    iterations_ = series_->iterations();
    return best;
  }

  const verify::Facts& facts_;
  const int64_t budget_bytes_;
  const ProofSource& source_;
  const int64_t added_ns_;
  const CertifyLimits& limits_;
  double base_scale_ = 1, byte_scale_ = 1;
  int shift_ = 0, byte_shift_ = 0;
  std::vector<verify::InsideRow> inside_rows_;
  std::optional<Program> program_;
  MipProgram program_lp_;
  LpSeries* series_ = nullptr;
  std::vector<uint8_t> low_, high_;
  std::map<int32_t, double> gain_sum_;
  std::map<int32_t, int> gain_count_;
  std::vector<Node> tree_;
  Node root_;
  int64_t root_ns_ = 0;
  int leaves_ = 0;
  int64_t multipliers_ = 0;
  int64_t iterations_ = 0;
};

}  // namespace

verify::Certificate CertifyProgram(const verify::Facts& facts,
                                   int64_t budget_bytes,
                                   const ProofSource& source, int64_t added_ns,
                                   const CertifyLimits& limits) {
  ProgramTree tree(facts, budget_bytes, source, added_ns, false, limits);
  verify::Certificate certificate{.method = verify::Method::kWindows,
                                  .budget_bytes = budget_bytes,
                                  .at = source.windows,
                                  .inside = source.inside};
  const bool grown = tree.Grow();
  certificate.inside_rows = tree.inside_rows();
  certificate.added_ns = grown ? added_ns : tree.root_ns();
  certificate.tree = grown ? tree.TakeTree() : std::vector<Node>{tree.root()};
  return certificate;
}

verify::Certificate CertifyImpossible(const verify::Facts& facts,
                                      int64_t least_bytes,
                                      const ProofSource& source,
                                      const CertifyLimits& limits) {
  ProgramTree tree(facts, least_bytes - 1, source, 0, true, limits);
  if (!tree.Grow()) return {};
  return {.method = verify::Method::kWindows,
          .refuses = true,
          .least_bytes = least_bytes,
          .at = source.windows,
          .inside = source.inside,
          .inside_rows = tree.inside_rows(),
          .tree = tree.TakeTree()};
}

}  // namespace reprise::planner
