// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/certify_tree.h"

#include <utility>

#include "planner/bounds/program_tree.h"

namespace reprise::planner {

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
  certificate.tree =
      grown ? tree.TakeTree() : std::vector<verify::Node>{tree.root()};
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

Refutation RefuteCheaper(const Problem& problem, const verify::Facts& facts,
                         int64_t budget_bytes, const ProofSource& source,
                         int64_t added_ns, bool to_optimum,
                         const CertifyLimits& limits) {
  ProgramTree tree(facts, budget_bytes, source, added_ns, false, limits,
                   to_optimum);
  Refutation found;
  const bool grown = tree.Grow();
  found.iterations = tree.iterations();
  found.solves = tree.solves();
  const verify::Program* program = tree.program();
  if (program == nullptr) return found;
  found.rows = program->row_count();
  found.root_ns = tree.root_ns();
  found.added_ns = tree.added_ns();
  if (grown) {
    found.outcome = Refutation::Outcome::kProven;
    found.tree = tree.TakeTree();
  }
  const std::vector<double>& solution = tree.solution();
  if (solution.empty()) return found;
  if (!grown) found.outcome = Refutation::Outcome::kCheaper;
  const auto is_one = [&](int32_t column) {
    return column >= 0 && solution[column] > 0.5;
  };
  for (size_t k = 0; k < source.windows.size(); ++k) {
    const auto window = static_cast<int>(k);
    KeepSet& keep = found.keep_sets.emplace_back();
    keep.at = source.windows[k];
    for (ValueId v = 0; v < problem.versions.value_count(); ++v) {
      if (!is_one(program->ColumnOfS(window, v))) continue;
      keep.saved.push_back(v);
      keep.saved_bytes += problem.BytesOf(v);
    }
    for (OpId o = 0; o < problem.op_count; ++o) {
      if (o == keep.at || !is_one(program->ColumnOfR(window, o))) continue;
      keep.recomputed.push_back(o);
      keep.cost_ns += problem.rules.rerun_ns[o];
    }
  }
  return found;
}

}  // namespace reprise::planner
