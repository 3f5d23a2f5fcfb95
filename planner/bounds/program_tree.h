// SPDX-License-Identifier: Apache-2.0
//
// Trees of linear programs (tree_grower.h) over the verifier's program of
// several windows, and which rows that program has: what certify_tree.h makes
// certificates of. Each tree begins with what the one before it learned.
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

  // That everything adds so much (Program::kNothing: that nothing fits). False:
  // it could not be proven within the limits.
  bool Grow(int64_t added_ns, bool to_optimum, const CertifyLimits& limits);

  const verify::Program* program() const {
    return program_ ? &*program_ : nullptr;
  }
  // Of the last Grow, as what follows.
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
  bool GrowTree(bool to_optimum, const CertifyLimits& limits);
  bool Build();
  // The program, with the rows inside segments that its relaxations violate.
  bool MakeRows(const CertifyLimits& limits);
  // The rows inside segments that a solution breaks; returns how many.
  size_t AddViolated(const std::vector<double>& solution);
  TreeProgram Tree(bool to_optimum) const;
  // A tree whose claim fell while it grew, as one of what it proves: what
  // proves that much without its children is a leaf.
  std::vector<verify::Node> Pruned(const std::vector<verify::Node>& tree) const;

  const verify::Facts& facts_;
  const int64_t budget_bytes_;
  const ProofSource source_;
  double base_scale_ = 1, byte_scale_ = 1;
  int shift_ = 0, byte_shift_ = 0;
  std::vector<verify::InsideRow> inside_rows_;
  std::optional<verify::Program> program_;
  MipProgram program_lp_;
  // Of the root of the last tree, to begin the next one with.
  std::vector<uint8_t> basis_;
  std::map<int32_t, double> gain_;
  std::vector<verify::Node> tree_;
  int64_t added_ns_ = 0;
  verify::Node root_;
  std::vector<double> solution_;
  int64_t root_ns_ = 0;
  int64_t solves_ = 0;
  int64_t iterations_ = 0;
};

}  // namespace reprise::planner
