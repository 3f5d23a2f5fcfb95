// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/certify_tree.h"

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
  certificate.inside_rows = tree.inside_rows();
  certificate.added_ns = grown ? added_ns : tree.root_ns();
  certificate.tree =
      grown ? tree.TakeTree() : std::vector<verify::Node>{tree.root()};
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
          .inside_rows = tree.inside_rows(),
          .tree = tree.TakeTree()};
}

Refuter::Refuter(const Problem& problem, const verify::Facts& facts,
                 int64_t budget_bytes, std::vector<OpId> windows)
    : problem_(problem),
      windows_(std::move(windows)),
      tree_(std::make_unique<ProgramTree>(facts, budget_bytes,
                                          ProofSource{.windows = windows_})) {}
Refuter::~Refuter() = default;

Refutation Refuter::Cheaper(int64_t added_ns, bool to_optimum,
                            const CertifyLimits& limits) {
  Refutation found;
  const bool grown = tree_->Grow(added_ns, to_optimum, limits);
  found.iterations = tree_->iterations();
  found.solves = tree_->solves();
  const verify::Program* program = tree_->program();
  if (program == nullptr) return found;
  found.rows = program->row_count();
  found.root_ns = tree_->root_ns();
  found.added_ns = tree_->added_ns();
  if (grown) {
    found.outcome = Refutation::Outcome::kProven;
    found.tree = tree_->TakeTree();
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
