// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/tree_grower.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace reprise::planner {

using verify::Node;

namespace {

constexpr double kWhole = 1e-6;
constexpr size_t kMostTried = 20;  // columns tried before branching
constexpr int kTrialIterations = 20;

}  // namespace

TreeGrower::TreeGrower(const TreeProgram& tree, TreeParts& parts,
                       const std::function<bool()>& should_stop)
    : tree_(tree), parts_(parts), should_stop_([this, &should_stop] {
        return parts_.over() || part_->dropped ||
               (should_stop && should_stop());
      }) {}

bool TreeGrower::Grow(TreePart& part) {
  if (part.dropped) return false;
  part_ = &part;
  domain_ = &part.domain;
  open_.clear();
  if (!series_) series_.emplace(tree_.relaxation, should_stop_);
  for (const int32_t j : begun_with_) series_->SetBounds(j, 0, 1);
  begun_with_.assign(domain_->fixed().begin(), domain_->fixed().end());
  PassOn(0);
  if (!part.basis.empty()) series_->BeginFrom(part.basis);
  return GrowFrom(0);
}

LpSeries::Answer TreeGrower::Solve(int most_iterations) {
  const int64_t before = series_->iterations();
  LpSeries::Answer answer = series_->Solve(most_iterations);
  parts_.CountSolve(series_->iterations() - before);
  return answer;
}

Node TreeGrower::LeafOf(const LpSeries::Answer& answer, bool impossible,
                        int sign) const {
  Node leaf{.shift = tree_.shift,
            .byte_shift = tree_.byte_shift,
            .impossible = impossible};
  double scale = 1 / tree_.base_scale;
  if (impossible) {
    // Scaling does not matter: any multiple proves the same.
    double largest = 0;
    for (const double y : answer.multipliers) {
      largest = std::max(largest, std::abs(y));
    }
    if (largest <= 0) return leaf;
    scale = 1024 / largest;
  }
  for (size_t i = 0; i < answer.multipliers.size(); ++i) {
    const auto row = static_cast<int32_t>(i);
    const double y = sign * answer.multipliers[i] * scale * tree_.ScaleOf(row);
    if (y <= 0) continue;
    const int shift =
        tree_.shift + (tree_.program.InBytes(row) ? tree_.byte_shift : 0);
    const double value = std::round(std::ldexp(y, shift));
    if (value < 1 || value > 4e18) continue;
    leaf.multipliers.push_back({row, static_cast<int64_t>(value)});
  }
  return leaf;
}

int64_t TreeGrower::Proven(const Node& leaf) const {
  const StatusOr<int64_t> proven =
      tree_.program.AddedNs(leaf, domain_->low(), domain_->high());
  return proven.ok() ? *proven : 0;
}

bool TreeGrower::GrowFrom(int depth) {
  if (domain_->empty()) return AddLeaf({.impossible = true});
  if (!parts_.CountNode() || parts_.IterationsLeft() == 0) return false;
  if (parts_.IsSomebodyIdle()) CutOff();
  const LpSeries::Answer answer = Solve(parts_.IterationsLeft());
  if (answer.outcome == LpOutcome::kStopped) return false;
  if (answer.outcome == LpOutcome::kInfeasible) {
    for (const int sign : {1, -1}) {
      const Node leaf = LeafOf(answer, true, sign);
      if (Proven(leaf) >= parts_.added_ns()) return AddLeaf(leaf);
    }
    return false;
  }
  Node node = LeafOf(answer, false, 1);
  const int64_t proven = Proven(node);
  if (depth == 0 && part_->from == nullptr) {
    parts_.KeepRoot(proven, node, series_->Basis());
  }
  const int64_t claimed = parts_.added_ns();
  if (proven >= claimed) return AddLeaf(node);
  if (parts_.root_only()) return false;
  // Fix the columns that this relaxation's multipliers leave no choice for.
  const size_t before = domain_->fixed().size();
  node.narrows = true;
  if (domain_->Narrow(node, claimed).ok() && domain_->fixed().size() > before) {
    PassOn(before);
    const bool grown = AddLeaf(node) && GrowFrom(depth + 1);
    UndoTo(before);
    return grown;
  }
  const int32_t column = Choose(answer);
  if (column >= 0) return Branch(column, depth);
  // From now on only cheaper solutions matter; everything proven so far is
  // above this one.
  if (!tree_.to_optimum) {
    parts_.KeepFirst(*part_, answer.solution);
    return false;
  }
  const bool lower = parts_.Lower(CostOf(answer.solution), answer.solution);
  if (!lower && claimed == parts_.added_ns()) return false;
  node.narrows = false;
  return proven >= parts_.added_ns() && AddLeaf(node);
}

bool TreeGrower::Branch(int32_t column, int depth) {
  const size_t before = domain_->fixed().size();
  part_->nodes.push_back({.branch = column});
  open_.push_back({.fixed = before, .column = column});
  Fix(column, 1);
  bool grown = GrowFrom(depth + 1);
  UndoTo(before);
  const Branching branching = open_.back();
  open_.pop_back();
  if (!grown) return false;
  if (branching.elsewhere != nullptr) {
    part_->cut_off.emplace_back(part_->nodes.size(), branching.elsewhere);
    return true;
  }
  Fix(column, 0);
  grown = GrowFrom(depth + 1);
  UndoTo(before);
  return grown;
}

void TreeGrower::CutOff() {
  const auto first =
      std::find_if(open_.begin(), open_.end(), [](const Branching& branching) {
        return branching.elsewhere == nullptr;
      });
  if (first == open_.end()) return;
  auto part = std::make_unique<TreePart>(*domain_);
  part->basis = series_->Basis();
  part->gain = part_->gain;
  part->from = part_;
  part->domain.UndoTo(first->fixed);
  part->domain.Fix(first->column, 0);
  first->elsewhere = &parts_.Add(std::move(part));
}

int64_t TreeGrower::CostOf(const std::vector<double>& solution) const {
  int64_t cost = 0;
  for (int32_t j = 0; j < tree_.program.column_count(); ++j) {
    if (solution[j] > 0.5) cost += tree_.program.CostNs(j);
  }
  return cost;
}

bool TreeGrower::AddLeaf(const Node& leaf) {
  if (!parts_.CountMultipliers(leaf.multipliers.size())) return false;
  part_->nodes.push_back(leaf);
  return true;
}

void TreeGrower::Fix(int32_t column, uint8_t value) {
  const size_t before = domain_->fixed().size();
  domain_->Fix(column, value);
  PassOn(before);
}

void TreeGrower::PassOn(size_t before) {
  for (const int32_t j : domain_->fixed().subspan(before)) {
    series_->SetBounds(j, domain_->low()[j], domain_->high()[j]);
  }
}

void TreeGrower::UndoTo(size_t before) {
  for (const int32_t j : domain_->fixed().subspan(before)) {
    series_->SetBounds(j, 0, 1);
  }
  domain_->UndoTo(before);
}

int32_t TreeGrower::Choose(const LpSeries::Answer& answer) {
  std::vector<std::pair<double, int32_t>> candidates;
  for (const bool kept : {true, false}) {
    for (int32_t j = 0; j < tree_.program.column_count(); ++j) {
      const double x = answer.solution[j];
      if (tree_.program.IsKept(j) != kept || x < kWhole || x > 1 - kWhole) {
        continue;
      }
      const auto known = part_->gain.find(j);
      candidates.emplace_back(
          known != part_->gain.end() ? 1 + known->second : std::min(x, 1 - x),
          j);
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
    if (parts_.over() || part_->dropped) return j;  // whatever it is
    const auto [gain, fresh] = part_->gain.try_emplace(j, 0);
    if (fresh) {
      constexpr double kMostGain = 1 << kLpCostBits;
      double gains[2];
      for (const uint8_t value : {0, 1}) {
        series_->SetBounds(j, value, value);
        const LpSeries::Answer trial = Solve(kTrialIterations);
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
  return best;
}

}  // namespace reprise::planner
