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

// Number of bits of the base time that multipliers keep.
constexpr int kTimeBits = 36;
constexpr int kMostShift = 60;
constexpr int kMostRowRounds = 8;  // of rows inside segments
constexpr int kMostTrees = 8;
constexpr int kMostTreeColumns = 60'000;
constexpr int64_t kMany = 1'000'000;  // iterations of one solve

// Copies a tree in preorder, without what is below a node that proves the
// claim.
class Pruning {
 public:
  Pruning(const Program& program, const std::vector<Node>& tree,
          int64_t claimed_ns)
      : program_(program),
        tree_(tree),
        claimed_ns_(claimed_ns),
        domain_(program) {}

  // Returns the pruned tree.
  std::vector<Node> Copy() {
    if (!tree_.empty()) CopyNext();
    return std::move(copy_);
  }

 private:
  // Copies the next node and what is below it.
  void CopyNext() {
    const Node& node = tree_[next_];
    const size_t before = domain_.fixed().size();
    if (domain_.empty()) {
      copy_.push_back({.impossible = true});
      Skip();
    } else if (node.branch >= 0) {
      copy_.push_back(tree_[next_++]);
      for (const uint8_t value : {1, 0}) {
        domain_.Fix(node.branch, value);
        CopyNext();
        domain_.UndoTo(before);
      }
    } else if (node.narrows && !Proves(node)) {
      copy_.push_back(tree_[next_++]);
      // The verifier will reject what cannot be evaluated.
      static_cast<void>(domain_.Narrow(node, claimed_ns_));
      CopyNext();
      domain_.UndoTo(before);
    } else {
      copy_.push_back(node);
      copy_.back().narrows = false;
      Skip();
    }
  }

  // Returns whether a node proves the claim without its children.
  bool Proves(const Node& node) const {
    const StatusOr<int64_t> proven =
        program_.AddedNs(node, domain_.low(), domain_.high());
    return proven.ok() && *proven >= claimed_ns_;
  }

  // Skips the next node and everything below it.
  void Skip() {
    for (int open = 1; open > 0; ++next_) {
      const Node& node = tree_[next_];
      open += node.branch >= 0 ? 1 : node.narrows ? 0 : -1;
    }
  }

  const Program& program_;
  const std::vector<Node>& tree_;
  const int64_t claimed_ns_;
  verify::Domain domain_;
  size_t next_ = 0;
  std::vector<Node> copy_;
};

}  // namespace

ProgramTree::ProgramTree(const verify::Facts& facts, int64_t budget_bytes,
                         const ProofSource& source)
    : facts_(facts), budget_bytes_(budget_bytes), source_(source) {
  int64_t base_ns = 1, largest = 1;
  for (const Op& op : facts.graph->ops) base_ns += op.time_ns;
  for (const Storage& storage : facts.graph->storages) {
    largest = std::max(largest, storage.bytes);
  }
  base_scale_ = LpScale(base_ns) * (1 << kLpCostBits);
  byte_scale_ = LpScale(largest);
  shift_ = std::clamp(kTimeBits - static_cast<int>(std::bit_width(
                                      static_cast<uint64_t>(base_ns))),
                      0, kMostShift);
  byte_shift_ = std::clamp(
      static_cast<int>(std::bit_width(static_cast<uint64_t>(largest))), 0,
      kMostShift - shift_);
}

bool ProgramTree::Grow(int64_t added_ns, bool to_optimum,
                       const CertifyLimits& limits) {
  claimed_ns_ = added_ns;
  iterations_ = solves_ = 0;
  if (!Prepare() || (!has_rows_ && !MakeRows(limits))) return false;
  has_rows_ = true;
  // An integral solution that costs less may violate rows inside segments that
  // no relaxation violated before. With these rows added, it is no longer a
  // solution; what was proven without them stays true.
  bool grown = false;
  for (int round = 0; round < kMostTrees; ++round) {
    grown = GrowTree(added_ns, to_optimum, limits) || grown;
    if (solution_.empty() || AddViolated(solution_) == 0 || !Build()) break;
  }
  return grown;
}

TreeProgram ProgramTree::Tree(bool to_optimum) const {
  return {.program = *program_,
          .relaxation = program_lp_,
          .base_scale = base_scale_,
          .byte_scale = byte_scale_,
          .shift = shift_,
          .byte_shift = byte_shift_,
          .to_optimum = to_optimum};
}

bool ProgramTree::GrowTree(int64_t added_ns, bool to_optimum,
                           const CertifyLimits& limits) {
  const TreeProgram tree = Tree(to_optimum);
  TreeParts parts(added_ns, iterations_, limits);
  auto root = std::make_unique<TreePart>(verify::Domain(*program_));
  root->basis = basis_;
  root->gain = gain_;
  parts.Add(std::move(root));
  // Another thread goes on with its own work until there is a part for it, and
  // then stays.
  const auto grow = [&](const std::function<bool()>& should_stop, bool waits) {
    TreeGrower grower(tree, parts, should_stop);
    while (TreePart* part = parts.Next(should_stop, waits)) {
      parts.Done(*part, grower.Grow(*part));
      waits = true;
    }
  };
  const auto mine = [&] { grow(limits.should_stop, true); };
  if (limits.exchange != nullptr) {
    limits.exchange->Together(mine, [&] { grow({}, false); });
  } else {
    mine();
  }
  iterations_ = parts.iterations();
  solves_ += parts.solves();
  root_ = {.added_ns = parts.root_ns(),
           .tree = {parts.root()},
           .inside_rows = inside_rows_};
  basis_ = parts.root_basis();
  gain_ = parts.gain();
  solution_ = parts.solution();
  claimed_ns_ = parts.added_ns();
  if (!parts.grown()) return false;
  proof_ = {.added_ns = parts.added_ns(),
            .tree = parts.Assemble(),
            .inside_rows = inside_rows_};
  // A tree whose claim was lowered while it grew is reduced to what it claims
  // now: a node that proves that much without its children becomes a leaf.
  if (proof_.added_ns < added_ns) {
    proof_.tree = Pruning(*program_, proof_.tree, proof_.added_ns).Copy();
  }
  return true;
}

bool ProgramTree::Build() {
  StatusOr<Program> built = Program::Build(
      facts_, budget_bytes_, source_.windows, source_.inside, inside_rows_);
  if (!built.ok()) return false;
  program_.reset();
  if (built->column_count() > kMostTreeColumns) return false;
  program_.emplace(*std::move(built));
  program_lp_ = {};
  basis_.clear();
  for (int32_t j = 0; j < program_->column_count(); ++j) {
    program_lp_.AddColumn(
        static_cast<double>(program_->CostNs(j)) * base_scale_, 0, 1);
  }
  for (int32_t i = 0; i < program_->row_count(); ++i) {
    const double scale = program_->InBytes(i) ? byte_scale_ : 1;
    for (const Program::Entry& entry : program_->Row(i)) {
      program_lp_.AddEntry(entry.column,
                           static_cast<double>(entry.value) * scale);
    }
    program_lp_.CloseRow(static_cast<double>(program_->Least(i)) * scale,
                         kLpInfinity);
  }
  return true;
}

bool ProgramTree::MakeRows(const CertifyLimits& limits) {
  if (!source_.inside) return true;
  for (int round = 0; round < kMostRowRounds; ++round) {
    LpSeries series(program_lp_, limits.should_stop);
    const LpSeries::Answer answer = series.Solve(static_cast<int>(
        std::clamp<int64_t>(limits.most_iterations - iterations_, 0, kMany)));
    iterations_ += series.iterations();
    if (answer.outcome != LpOutcome::kOptimal) break;
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

}  // namespace reprise::planner
