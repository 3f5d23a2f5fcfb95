// SPDX-License-Identifier: Apache-2.0
//
// A tree of linear programs (tree_grower.h) over the verifier's program of
// several windows, and which rows that program has: what certify_tree.h makes
// certificates of.
#pragma once

#include <cstdint>
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
  // The program, with the rows inside segments that its relaxations violate.
  bool MakeRows();
  // The rows inside segments that a solution breaks; returns how many.
  size_t AddViolated(const std::vector<double>& solution);
  int IterationsLeft() const;
  TreeProgram Tree() const;

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
  std::vector<verify::Node> tree_;
  verify::Node root_;
  std::vector<double> solution_;
  int64_t root_ns_ = 0;
  int64_t solves_ = 0;
  int64_t iterations_ = 0;
};

}  // namespace reprise::planner
