// SPDX-License-Identifier: Apache-2.0
//
// A tree of linear programs over the verifier's program of several windows,
// grown depth first until every leaf proves a claim: what certify_tree.h makes
// certificates of.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "planner/bounds/certify.h"
#include "planner/bounds/lp.h"
#include "planner/verify/domain.h"
#include "planner/verify/program.h"

namespace reprise::planner {

class ProgramTree {
 public:
  ProgramTree(const verify::Facts& facts, int64_t budget_bytes,
              const ProofSource& source, int64_t added_ns, bool refuses,
              const CertifyLimits& limits, bool to_optimum = false);

  // False: it could not be proven within the limits.
  bool Grow();

  const verify::Program* program() const {
    return program_ ? &*program_ : nullptr;
  }
  int64_t iterations() const { return iterations_; }
  int64_t solves() const { return solves_; }
  // Of all the rows, and it adds less than claimed; empty: none was met.
  const std::vector<double>& solution() const { return solution_; }
  // What the tree proves, once it is grown.
  int64_t added_ns() const { return added_ns_; }
  // What the root alone proves.
  int64_t root_ns() const { return root_ns_; }
  const verify::Node& root() const { return root_; }
  const std::vector<verify::InsideRow>& inside_rows() const {
    return inside_rows_;
  }
  std::vector<verify::Node> TakeTree() { return std::move(tree_); }

 private:
  bool GrowTree();
  bool Build();
  double ScaleOf(int32_t row) const;
  // The program, with the rows inside segments that its relaxations violate.
  bool MakeRows();
  // The rows inside segments that a solution breaks; returns how many.
  size_t AddViolated(const std::vector<double>& solution);
  int IterationsLeft() const;
  // The multipliers of an answer, rounded to what a certificate holds.
  verify::Node LeafOf(const LpSeries::Answer& answer, bool impossible,
                      int sign) const;
  int64_t Proven(const verify::Node& leaf) const;
  // From a node under what is fixed; False: it could not be proven.
  bool GrowFrom(int depth);
  int64_t CostOf(const std::vector<double>& solution) const;
  bool AddLeaf(const verify::Node& leaf);
  void Fix(int32_t column, uint8_t value);
  // Tells the linear programs what was fixed after the first so many.
  void PassOn(size_t before);
  void UndoTo(size_t before);
  // The fractional column whose two sides raise the cost most, of the few that
  // look best; those of S first: where they are whole, the others may be.
  int32_t Choose(const LpSeries::Answer& answer);

  const verify::Facts& facts_;
  const int64_t budget_bytes_;
  const ProofSource& source_;
  int64_t added_ns_;
  const CertifyLimits& limits_;
  const bool to_optimum_;
  double base_scale_ = 1, byte_scale_ = 1;
  int shift_ = 0, byte_shift_ = 0;
  std::vector<verify::InsideRow> inside_rows_;
  std::optional<verify::Program> program_;
  MipProgram program_lp_;
  LpSeries* series_ = nullptr;
  std::optional<verify::Domain> domain_;
  std::map<int32_t, double> gain_;  // by column, what its one trial said
  std::vector<verify::Node> tree_;
  verify::Node root_;
  std::vector<double> solution_;
  int64_t root_ns_ = 0;
  int nodes_ = 0;
  int64_t solves_ = 0;
  int64_t multipliers_ = 0;
  int64_t iterations_ = 0;
  int64_t iterations_before_ = 0;  // the tree that is grown
};

}  // namespace reprise::planner
