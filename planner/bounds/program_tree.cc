// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/program_tree.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>

namespace reprise::planner {

using verify::Node;
using verify::Program;

namespace {

// Multipliers keep so many bits of the base time.
constexpr int kTimeBits = 36;
constexpr int kMostShift = 60;
constexpr int kMostRounds = 8;  // of rows inside segments
constexpr int kMostTrees = 8;
constexpr int kMostColumns = 60'000;

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

TreeProgram ProgramTree::Tree() const {
  return {.program = *program_,
          .relaxation = program_lp_,
          .base_scale = base_scale_,
          .byte_scale = byte_scale_,
          .shift = shift_,
          .byte_shift = byte_shift_,
          .to_optimum = to_optimum_};
}

bool ProgramTree::GrowTree() {
  const TreeProgram tree = Tree();
  TreeParts parts(added_ns_, iterations_, limits_);
  parts.Add(std::make_unique<TreePart>(verify::Domain(*program_)));
  const auto grow = [&](const std::function<bool()>& should_stop) {
    while (TreePart* part = parts.Next(should_stop)) {
      TreeGrower grower(tree, *part, parts, should_stop);
      parts.Done(*part, grower.Grow());
    }
  };
  const auto mine = [&] { grow(limits_.should_stop); };
  if (limits_.exchange != nullptr) {
    limits_.exchange->Together(mine, [&] { grow({}); });
  } else {
    mine();
  }
  added_ns_ = parts.added_ns();
  iterations_ = parts.iterations();
  solves_ += parts.solves();
  root_ns_ = parts.root_ns();
  root_ = parts.root();
  solution_ = parts.solution();
  tree_ = parts.grown() ? parts.Assemble() : std::vector<Node>{};
  return parts.grown();
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
    const double scale = program_->InBytes(i) ? byte_scale_ : 1;
    for (const Program::Entry& entry : program_->Row(i)) {
      program_lp_.AddEntry(entry.column,
                           static_cast<double>(entry.value) * scale);
    }
    program_lp_.CloseRow(static_cast<double>(program_->Least(i)) * scale,
                         kMipInfinity);
  }
  return true;
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

}  // namespace reprise::planner
