// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/certify_tree.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "planner/bounds/program_tree.h"

namespace reprise::planner {

verify::Certificate CertifyProgram(const verify::Facts& facts,
                                   int64_t budget_bytes,
                                   const ProofSource& source, int64_t added_ns,
                                   const CertifyLimits& limits) {
  ProgramTree tree(facts, budget_bytes, source);
  verify::Certificate certificate{.method = verify::Method::kWindows,
                                  .budget_bytes = budget_bytes,
                                  .at = source.windows,
                                  .inside = source.inside};
  const bool grown = tree.Grow(added_ns, /*to_optimum=*/false, limits);
  const TreeProof& proof = grown ? tree.proof() : tree.root();
  certificate.added_ns = proof.added_ns;
  certificate.tree = proof.tree;
  certificate.inside_rows = proof.inside_rows;
  return certificate;
}

verify::Certificate CertifyImpossible(const verify::Facts& facts,
                                      int64_t least_bytes,
                                      const ProofSource& source,
                                      const CertifyLimits& limits) {
  ProgramTree tree(facts, least_bytes - 1, source);
  if (!tree.Grow(verify::Program::kNothing, /*to_optimum=*/false, limits)) {
    return {};
  }
  return {.method = verify::Method::kWindows,
          .refuses = true,
          .least_bytes = least_bytes,
          .at = source.windows,
          .inside = source.inside,
          .inside_rows = tree.proof().inside_rows,
          .tree = tree.proof().tree};
}

Refuter::Refuter(const Problem& problem, const verify::Facts& facts,
                 int64_t budget_bytes, std::vector<OpId> windows, bool inside)
    : problem_(problem),
      windows_(std::move(windows)),
      inside_(inside),
      tree_(std::make_unique<ProgramTree>(
          facts, budget_bytes,
          ProofSource{.windows = windows_, .inside = inside})) {}
Refuter::~Refuter() = default;

int Refuter::columns() const {
  return tree_->Prepare() ? tree_->program()->column_count()
                          : std::numeric_limits<int>::max();
}

int64_t Refuter::RootTicks() const {
  // It takes about half as many iterations as there are columns.
  const verify::Program& program = *tree_->program();
  return program.column_count() * IterationTicks(program.row_count()) / 2;
}

int64_t Refuter::LeastTicks() const {
  const int64_t columns = tree_->program()->column_count();
  return 40 * columns *
         std::min<int64_t>(tree_->program()->row_count(), 2 * columns);
}

Refutation Refuter::Cheaper(int64_t added_ns, bool to_optimum,
                            const CertifyLimits& limits) {
  Refutation found;
  const bool grown = tree_->Grow(added_ns, to_optimum, limits);
  found.iterations = tree_->iterations();
  found.solves = tree_->solves();
  const verify::Program* program = tree_->program();
  if (program == nullptr) return found;
  found.rows = program->row_count();
  found.added_ns = tree_->claimed_ns();
  found.root = tree_->root();
  if (grown) {
    found.outcome = Refutation::Outcome::kProven;
    found.proof = tree_->proof();
    found.added_ns = found.proof.added_ns;
  }
  const std::vector<double>& solution = tree_->solution();
  if (solution.empty()) return found;
  if (!grown) found.outcome = Refutation::Outcome::kCheaper;
  const auto is_one = [&](int32_t column) {
    return column >= 0 && solution[column] > 0.5;
  };
  for (size_t k = 0; k < windows_.size(); ++k) {
    const auto window = static_cast<int>(k);
    found.keep_sets.push_back(MakeKeepSet(
        problem_, windows_[k],
        [&](ValueId v) { return is_one(program->ColumnOfS(window, v)); },
        [&](OpId o) { return is_one(program->ColumnOfR(window, o)); }));
  }
  return found;
}

}  // namespace reprise::planner
