// SPDX-License-Identifier: Apache-2.0
//
// Grows a tree of linear programs depth first until every leaf proves a claim,
// on one thread or several: a grower with nothing left gets the largest part
// that another one has not begun. A part starts with the columns that were
// fixed where it was cut off, and its nodes are inserted at that place, so the
// tree is the same kind of certificate regardless of who grew it. On one thread
// it is the same tree every time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "planner/bounds/certify.h"
#include "planner/bounds/lp.h"
#include "planner/verify/domain.h"
#include "planner/verify/program.h"

namespace reprise::planner {

// The program that the tree is for.
struct TreeProgram {
  const verify::Program& program;
  const LinearProgram& relaxation;
  double base_scale = 1, byte_scale = 1;  // scale of its costs and bytes
  int shift = 0, byte_shift = 0;          // scale of certificates' multipliers
  // Continue when something cheaper is found, until nothing is.
  bool to_optimum = false;

  double ScaleOf(int32_t row) const {
    return program.InBytes(row) ? byte_scale : 1;
  }
};

// A part of the tree, which one grower grows.
struct TreePart {
  explicit TreePart(verify::Domain fixed) : domain(std::move(fixed)) {}

  verify::Domain domain;
  std::vector<uint8_t> basis;       // of the relaxation, to start from
  std::map<int32_t, double> gain;   // by column: result of its trial
  TreePart* from = nullptr;         // part it was cut off from; root: null
  std::vector<verify::Node> nodes;  // in preorder
  // Parts whose nodes belong before the node at this position.
  std::vector<std::pair<size_t, const TreePart*>> cut_off;
  // `solved`: it ends with an integral solution. `dropped`: an earlier part has
  // one, so this part is not needed.
  bool solved = false;
  std::atomic<bool> dropped = false;
};

// Shared by the growers of one tree: the parts, the claim, the effort so far.
// Thread-safe.
class TreeParts {
 public:
  TreeParts(int64_t added_ns, int64_t iterations, const CertifyLimits& limits)
      : limits_(limits), added_ns_(added_ns), iterations_(iterations) {}

  // Adds a part; the first one is the root.
  TreePart& Add(std::unique_ptr<TreePart> part);
  // Returns a part that no grower has begun. Null: the tree is complete or cannot
  // be completed, or no part is free and the caller does not wait for one.
  TreePart* Next(const std::function<bool()>& should_stop, bool waits);
  // Reports that a part was grown, or could not be.
  void Done(const TreePart& part, bool grown);
  // Returns whether a grower waits in Next, or left it, and there is no part
  // for it.
  bool IsSomebodyIdle() const { return idle_ > 0 || came_by_; }
  // True once there is nothing left to grow.
  bool over() const { return over_; }
  // True if the whole tree was grown.
  bool grown() const { return over_ && !failed_; }

  bool root_only() const { return limits_.root_only; }
  // Counts a node; returns false if the tree may not have more.
  bool CountNode() { return ++nodes_ <= limits_.most_leaves; }
  // Counts the multipliers of a node; returns false if a certificate may not
  // have more.
  bool CountMultipliers(size_t count);
  void CountSolve(int64_t iterations) {
    ++solves_;
    iterations_ += iterations;
  }
  // Returns how many simplex iterations the limits still allow.
  int IterationsLeft() const;
  int64_t iterations() const { return iterations_; }
  int64_t solves() const { return solves_; }

  int64_t added_ns() const { return added_ns_; }
  // Keeps an integral solution, if one is enough: the first in preorder, which
  // is the one that a single thread would find.
  void KeepFirst(TreePart& part, const std::vector<double>& solution);
  // Keeps a solution with this added time, if the optimum is wanted: from now
  // on nothing above it is claimed. Returns false if it is not less than
  // before.
  bool Lower(int64_t cost_ns, const std::vector<double>& solution);
  // Empty: none was found.
  const std::vector<double>& solution() const { return solution_; }
  // Keeps what the root proves, its node, and the basis in which its relaxation
  // ended.
  void KeepRoot(int64_t proven_ns, const verify::Node& root,
                std::vector<uint8_t> basis);
  int64_t root_ns() const { return root_ns_; }
  const verify::Node& root() const { return root_; }
  // The final basis of the root's relaxation, and the results of trials in its
  // part: another tree of the same program starts from them.
  const std::vector<uint8_t>& root_basis() const { return root_basis_; }
  const std::map<int32_t, double>& gain() const { return parts_.front()->gain; }

  // Returns all nodes of the completed tree.
  std::vector<verify::Node> Assemble() const;

 private:
  const CertifyLimits& limits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<TreePart>> parts_;
  std::vector<TreePart*> order_;  // by preorder of what is left to grow
  std::deque<TreePart*> waiting_;
  int growing_ = 0;
  std::atomic<int> idle_ = 0;          // waiting threads less waiting parts
  std::atomic<bool> came_by_ = false;  // a thread found no part, and left
  std::atomic<bool> over_ = false, failed_ = false;
  std::atomic<int64_t> added_ns_, iterations_, solves_ = 0, multipliers_ = 0;
  std::atomic<int> nodes_ = 0;
  std::vector<double> solution_;
  int64_t solution_ns_ = 0;
  int64_t root_ns_ = 0;
  verify::Node root_;
  std::vector<uint8_t> root_basis_;
};

// Grows one part after the other, on one thread.
class TreeGrower {
 public:
  // `should_stop` may be empty; it is called on the growing thread.
  TreeGrower(const TreeProgram& tree, TreeParts& parts,
             const std::function<bool()>& should_stop);

  // Grows a part. Returns false if the claim could not be proven within the
  // limits.
  bool Grow(TreePart& part);

 private:
  // A branching whose second side is not begun, or is grown elsewhere.
  struct Branching {
    size_t fixed = 0;  // columns fixed before it
    int32_t column = 0;
    const TreePart* elsewhere = nullptr;
  };

  // Grows the subtree under the current fixes. Returns false if the claim could
  // not be proven within the limits.
  bool GrowFrom(int depth);
  // Grows both sides of a branching, 1 and then 0, unless another grower has
  // the second.
  bool Branch(int32_t column, int depth);
  // Passes the second side of the first open branching to another grower.
  void CutOff();
  // Solves the relaxation under the current fixes, and counts the effort.
  LpSeries::Answer Solve(int most_iterations);
  // Rounds the multipliers of an answer to what a certificate can hold.
  verify::Node LeafOf(const LpSeries::Answer& answer, bool impossible,
                      int sign) const;
  // Returns the time that the verifier finds a leaf to prove; 0 if it rejects
  // the leaf.
  int64_t Proven(const verify::Node& leaf) const;
  // Returns the added time of an integral solution.
  int64_t CostOf(const std::vector<double>& solution) const;
  // Appends a node to the part. Returns false if a certificate may not have
  // more multipliers.
  bool AddLeaf(const verify::Node& leaf);
  // Fixes a column in the domain and in the relaxation.
  void Fix(int32_t column, uint8_t value);
  // Tells the linear programs which columns were fixed after the first
  // `before`.
  void PassOn(size_t before);
  // Frees all but the first `before` fixed columns, in the domain and in the
  // relaxation.
  void UndoTo(size_t before);
  // Chooses the fractional column whose two sides raise the cost most, among
  // the few most promising. Columns of S come first: if they are integral, the
  // others can be.
  int32_t Choose(const LpSeries::Answer& answer);

  const TreeProgram& tree_;
  TreeParts& parts_;
  const std::function<bool()> should_stop_;
  // The part that is being grown.
  TreePart* part_ = nullptr;
  verify::Domain* domain_ = nullptr;
  std::vector<Branching> open_;
  // Created for the first part; and the columns that were fixed where the last
  // part began.
  std::optional<LpSeries> series_;
  std::vector<int32_t> begun_with_;
};

}  // namespace reprise::planner
