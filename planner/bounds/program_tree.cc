// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/program_tree.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace reprise::planner {

using verify::Domain;
using verify::Node;
using verify::Program;

namespace {

// Multipliers keep so many bits of the base time.
constexpr int kTimeBits = 36;
constexpr int kMostShift = 60;
constexpr int kMostRounds = 8;  // of rows inside segments
constexpr int kMostTrees = 8;
constexpr int kMostColumns = 60'000;
constexpr double kWhole = 1e-6;
constexpr size_t kMostTried = 20;  // columns tried before a branching
constexpr int kTrialIterations = 20;
// Larger certificates are not made.
constexpr int64_t kMostMultipliers = 400'000;

}  // namespace

ProgramTree::ProgramTree(const verify::Facts& facts, int64_t budget_bytes,
                         const ProofSource& source, int64_t added_ns,
                         bool refuses, const CertifyLimits& limits,
                         bool to_optimum)
    : facts_(facts),
      budget_bytes_(budget_bytes),
      source_(source),
      added_ns_(refuses ? Program::kNothing : added_ns),
      limits_(limits),
      to_optimum_(to_optimum) {
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

bool ProgramTree::Grow() {
  if (!MakeRows()) return false;
  // A whole solution that claims less may break rows inside segments that no
  // relaxation broke before: with those it is not one.
  for (int round = 0; round < kMostTrees; ++round) {
    if (GrowTree()) return true;
    if (solution_.empty() || AddViolated(solution_) == 0 || !Build()) break;
  }
  return false;
}

bool ProgramTree::GrowTree() {
  tree_.clear();
  solution_.clear();
  multipliers_ = 0;
  domain_.emplace(*program_);
  LpSeries series(program_lp_, limits_.should_stop);
  series_ = &series;
  iterations_before_ = iterations_;
  PassOn(0);
  const bool grown = GrowFrom(0);
  series_ = nullptr;
  return grown;
}

bool ProgramTree::Build() {
  StatusOr<Program> built = Program::Build(
      facts_, budget_bytes_, source_.windows, source_.inside, inside_rows_);
  if (!built.ok()) return false;
  program_.emplace(*std::move(built));
  if (program_->column_count() > kMostColumns) return false;
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

double ProgramTree::ScaleOf(int32_t row) const {
  return program_->InBytes(row) ? byte_scale_ : 1;
}

bool ProgramTree::MakeRows() {
  if (!Build()) return false;
  if (!source_.inside) return true;
  for (int round = 0; round < kMostRounds; ++round) {
    LpSeries series(program_lp_, limits_.should_stop);
    const LpSeries::Answer answer = series.Solve(IterationsLeft());
    iterations_ += series.iterations();
    if (answer.outcome != MipOutcome::kOptimal) break;
    if (AddViolated(answer.solution) == 0) break;
    if (!Build()) return false;
  }
  return true;
}

size_t ProgramTree::AddViolated(const std::vector<double>& solution) {
  if (!source_.inside) return 0;
  const size_t before = inside_rows_.size();
  const auto segments = static_cast<int>(source_.windows.size()) - 1;
  for (int k = 0; k < segments; ++k) {
    for (OpId o = 0; o < source_.windows[k + 1]; ++o) {
      const verify::InsideRow row{.segment = k, .op = o};
      const bool known = std::find(inside_rows_.begin(), inside_rows_.end(),
                                   row) != inside_rows_.end();
      if (!known && program_->ViolatesInside(k, o, solution)) {
        inside_rows_.push_back(row);
      }
    }
  }
  return inside_rows_.size() - before;
}

int ProgramTree::IterationsLeft() const {
  return static_cast<int>(
      std::clamp<int64_t>(limits_.most_iterations - iterations_, 0, 1'000'000));
}

Node ProgramTree::LeafOf(const LpSeries::Answer& answer, bool impossible,
                         int sign) const {
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

int64_t ProgramTree::Proven(const Node& leaf) const {
  const StatusOr<int64_t> proven =
      program_->AddedNs(leaf, domain_->low(), domain_->high());
  return proven.ok() ? *proven : 0;
}

bool ProgramTree::GrowFrom(int depth) {
  if (domain_->empty()) return AddLeaf({.impossible = true});
  if (++nodes_ > limits_.most_leaves || IterationsLeft() == 0) return false;
  const LpSeries::Answer answer = series_->Solve(IterationsLeft());
  ++solves_;
  iterations_ = iterations_before_ + series_->iterations();
  if (answer.outcome == MipOutcome::kStopped) return false;
  if (answer.outcome == MipOutcome::kInfeasibleProven) {
    for (const int sign : {1, -1}) {
      const Node leaf = LeafOf(answer, true, sign);
      if (Proven(leaf) >= added_ns_) return AddLeaf(leaf);
    }
    return false;
  }
  Node node = LeafOf(answer, false, 1);
  const int64_t proven = Proven(node);
  if (depth == 0) {
    root_ns_ = proven;
    root_ = node;
  }
  if (proven >= added_ns_) return AddLeaf(node);
  // What the multipliers of this relaxation leave no choice of.
  const size_t before = domain_->fixed().size();
  node.narrows = true;
  if (domain_->Narrow(node, added_ns_).ok() &&
      domain_->fixed().size() > before) {
    PassOn(before);
    const bool grown = AddLeaf(node) && GrowFrom(depth + 1);
    UndoTo(before);
    return grown;
  }
  const int32_t column = Choose(answer);
  if (column < 0) {
    solution_ = answer.solution;
    if (!to_optimum_) return false;
    // Only what is cheaper still is of interest from here on, up to what
    // IsProven lets pass. What has been proven so far is more than that.
    const int64_t cost = CostOf(solution_);
    if (cost >= added_ns_) return false;
    added_ns_ = cost - cost / 1'000'000;
    node.narrows = false;
    return proven >= added_ns_ && AddLeaf(node);
  }
  tree_.push_back({.branch = column});
  for (const uint8_t value : {1, 0}) {
    Fix(column, value);
    const bool grown = GrowFrom(depth + 1);
    UndoTo(before);
    if (!grown) return false;
  }
  return true;
}

int64_t ProgramTree::CostOf(const std::vector<double>& solution) const {
  int64_t cost = 0;
  for (int32_t j = 0; j < program_->column_count(); ++j) {
    if (solution[j] > 0.5) cost += program_->CostNs(j);
  }
  return cost;
}

bool ProgramTree::AddLeaf(const Node& leaf) {
  multipliers_ += static_cast<int64_t>(leaf.multipliers.size());
  if (multipliers_ > kMostMultipliers) return false;
  tree_.push_back(leaf);
  return true;
}

void ProgramTree::Fix(int32_t column, uint8_t value) {
  const size_t before = domain_->fixed().size();
  domain_->Fix(column, value);
  PassOn(before);
}

void ProgramTree::PassOn(size_t before) {
  for (const int32_t j : domain_->fixed().subspan(before)) {
    series_->SetBounds(j, domain_->low()[j], domain_->high()[j]);
  }
}

void ProgramTree::UndoTo(size_t before) {
  for (const int32_t j : domain_->fixed().subspan(before)) {
    series_->SetBounds(j, 0, 1);
  }
  domain_->UndoTo(before);
}

int32_t ProgramTree::Choose(const LpSeries::Answer& answer) {
  std::vector<std::pair<double, int32_t>> candidates;
  for (const bool kept : {true, false}) {
    for (int32_t j = 0; j < program_->column_count(); ++j) {
      const double x = answer.solution[j];
      if (program_->IsKept(j) != kept || x < kWhole || x > 1 - kWhole) {
        continue;
      }
      const auto known = gain_.find(j);
      candidates.emplace_back(
          known != gain_.end() ? 1 + known->second : std::min(x, 1 - x), j);
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
    const auto [gain, fresh] = gain_.try_emplace(j, 0);
    if (fresh) {
      constexpr double kMostGain = 1 << kMipCostBits;
      double gains[2];
      for (const uint8_t value : {0, 1}) {
        series_->SetBounds(j, value, value);
        const LpSeries::Answer trial = series_->Solve(kTrialIterations);
        ++solves_;
        gains[value] = std::clamp(trial.cost - answer.cost, 0.0, kMostGain);
        series_->SetBounds(j, 0, 1);
      }
      gain->second = (gains[0] + 1e-4) * (gains[1] + 1e-4);
    }
    const double score = gain->second;
    if (score > best_score) {
      best_score = score;
      best = j;
    }
  }
  iterations_ = iterations_before_ + series_->iterations();
  return best;
}

}  // namespace reprise::planner
