// SPDX-License-Identifier: Apache-2.0
//
// Trees of linear programs (tree_grower.h) over the verifier's program of
// several windows, and the choice of that program's rows. certify_tree.h makes
// certificates from them. Each tree starts from what the previous one learned.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "planner/bounds/certify.h"
#include "planner/bounds/lp.h"
#include "planner/bounds/tree_grower.h"
#include "planner/verify/program.h"

namespace reprise::planner {

class ProgramTree {
 public:
  ProgramTree(const verify::Facts& facts, int64_t budget_bytes,
              const ProofSource& source);

  // Builds the program, without rows inside segments. Returns false if that
  // fails or the program is too large.
  bool Prepare() { return program_ || Build(); }
  // Grows a tree to prove that every schedule adds at least `added_ns`
  // (Program::kNothing: that nothing fits). Returns false if that could not be
  // proven within the limits.
  bool Grow(int64_t added_ns, bool to_optimum, const CertifyLimits& limits);

  const verify::Program* program() const {
    return program_ ? &*program_ : nullptr;
  }
  // These are results of the last Grow.
  int64_t iterations() const { return iterations_; }
  int64_t solves() const { return solves_; }
  // A solution that satisfies all rows and adds less than claimed; empty: none
  // was found.
  const std::vector<double>& solution() const { return solution_; }
  // The claim; less where cheaper solutions have lowered it.
  int64_t claimed_ns() const { return claimed_ns_; }
  // What the completed tree proves, and what the root alone proves.
  const TreeProof& proof() const { return proof_; }
  const TreeProof& root() const { return root_; }

 private:
  // Grows one tree over the current rows. Returns whether it was completed; else
  // the last tree that was stays.
  bool GrowTree(int64_t added_ns, bool to_optimum, const CertifyLimits& limits);
  // Rebuilds program and relaxation from the current rows. Returns false if
  // that fails or the program is too large.
  bool Build();
  // Adds the rows inside segments that relaxations violate. Returns false if
  // the program is too large.
  bool MakeRows(const CertifyLimits& limits);
  // Adds the rows inside segments that a solution violates; returns how many.
  size_t AddViolated(const std::vector<double>& solution);
  // Returns what growers need to know about the program.
  TreeProgram Tree(bool to_optimum) const;

  const verify::Facts& facts_;
  const int64_t budget_bytes_;
  const ProofSource source_;
  double base_scale_ = 1, byte_scale_ = 1;
  int shift_ = 0, byte_shift_ = 0;
  std::vector<verify::InsideRow> inside_rows_;
  bool has_rows_ = false;
  std::optional<verify::Program> program_;
  LinearProgram program_lp_;
  // From the root of the last tree, to start the next one.
  std::vector<uint8_t> basis_;
  std::map<int32_t, double> gain_;
  TreeProof proof_, root_;
  int64_t claimed_ns_ = 0;
  std::vector<double> solution_;
  int64_t solves_ = 0;
  int64_t iterations_ = 0;
};

}  // namespace reprise::planner
