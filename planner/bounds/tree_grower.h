// SPDX-License-Identifier: Apache-2.0
//
// A tree of linear programs, grown depth first until every leaf proves a claim,
// by one thread or by several: whoever has nothing left to grow gets the
// largest part that another one has not begun. A part begins with what is fixed
// where it was cut off, and its nodes belong where that was, so that the tree
// is the same kind of certificate whoever grew it. On one thread it is the same
// tree every time.
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

// What a tree is of.
struct TreeProgram {
  const verify::Program& program;
  const MipProgram& relaxation;
  double base_scale = 1, byte_scale = 1;  // of costs and bytes in it
  int shift = 0, byte_shift = 0;          // of multipliers in certificates
  // Goes on where something adds less, until nothing does.
  bool to_optimum = false;

  double ScaleOf(int32_t row) const {
    return program.InBytes(row) ? byte_scale : 1;
  }
};

struct TreePart {
  explicit TreePart(verify::Domain fixed) : domain(std::move(fixed)) {}

  verify::Domain domain;
  std::vector<uint8_t> basis;       // of the relaxation, to begin from
  std::map<int32_t, double> gain;   // by column, what its one trial said
  TreePart* from = nullptr;         // which it was cut off; the root: nullptr
  std::vector<verify::Node> nodes;  // in preorder
  // Parts whose nodes belong before the node at such a place.
  std::vector<std::pair<size_t, const TreePart*>> cut_off;
  // It ends with a whole solution; another one before it did: nobody wants it.
  bool solved = false;
  std::atomic<bool> dropped = false;
};

// What the growers of one tree share: the parts, the claim, what it has cost.
// Any of them may call it at any time.
class TreeParts {
 public:
  TreeParts(int64_t added_ns, int64_t iterations, const CertifyLimits& limits)
      : limits_(limits), added_ns_(added_ns), iterations_(iterations) {}

  // The first one added is the root.

  TreePart& Add(std::unique_ptr<TreePart> part);
  // One that nobody has begun; nullptr: the tree is grown, or it cannot be.
  TreePart* Next(const std::function<bool()>& should_stop);
  void Done(const TreePart& part, bool grown);
  // Somebody waits in Next, and nothing is there.
  bool IsSomebodyIdle() const { return idle_ > 0; }
  bool over() const { return over_; }
  bool grown() const { return over_ && !failed_; }

  // False: that is more than a tree may have.
  bool CountNode() { return ++nodes_ <= limits_.most_leaves; }
  bool CountMultipliers(size_t count);
  void CountSolve(int64_t iterations) {
    ++solves_;
    iterations_ += iterations;
  }
  int IterationsLeft() const;
  int64_t iterations() const { return iterations_; }
  int64_t solves() const { return solves_; }

  int64_t added_ns() const { return added_ns_; }
  // A whole solution, where one is enough: the first in preorder counts, which
  // one thread would meet.
  void KeepFirst(TreePart& part, const std::vector<double>& solution);
  // One that adds so much, where the optimum is asked for: nothing more than
  // that is claimed from here on. False: that is not less.
  bool Lower(int64_t cost_ns, const std::vector<double>& solution);
  // Empty: none was met.
  const std::vector<double>& solution() const { return solution_; }
  void KeepRoot(int64_t proven_ns, const verify::Node& root,
                std::vector<uint8_t> basis);
  int64_t root_ns() const { return root_ns_; }
  const verify::Node& root() const { return root_; }
  // Where the root's relaxation ended, and what trials in its part said: what
  // another tree of the same program begins with.
  const std::vector<uint8_t>& root_basis() const { return root_basis_; }
  const std::map<int32_t, double>& gain() const { return parts_.front()->gain; }

  // All nodes, once it is grown.
  std::vector<verify::Node> Assemble() const;

 private:
  const CertifyLimits& limits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<TreePart>> parts_;
  std::vector<TreePart*> order_;  // by preorder of what is left to grow
  std::deque<TreePart*> waiting_;
  int growing_ = 0;
  std::atomic<int> idle_ = 0;  // threads that wait, less the parts that do
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
  // should_stop may be empty; it is asked on the thread that grows.
  TreeGrower(const TreeProgram& tree, TreeParts& parts,
             const std::function<bool()>& should_stop);

  // False: it could not be proven within the limits.
  bool Grow(TreePart& part);

 private:
  // A branching whose second side is not begun, or grows elsewhere.
  struct Branching {
    size_t fixed = 0;  // before it
    int32_t column = 0;
    const TreePart* elsewhere = nullptr;
  };

  bool GrowFrom(int depth);
  bool Branch(int32_t column, int depth);
  // Gives the second side of the first branching to somebody else.
  void CutOff();
  LpSeries::Answer Solve(int most_iterations);
  // The multipliers of an answer, rounded to what a certificate holds.
  verify::Node LeafOf(const LpSeries::Answer& answer, bool impossible,
                      int sign) const;
  int64_t Proven(const verify::Node& leaf) const;
  int64_t CostOf(const std::vector<double>& solution) const;
  bool AddLeaf(const verify::Node& leaf);
  void Fix(int32_t column, uint8_t value);
  // Tells the linear programs what was fixed after the first so many.
  void PassOn(size_t before);
  void UndoTo(size_t before);
  // The fractional column whose two sides raise the cost most, of the few that
  // look best; those of S first: where they are whole, the others may be.
  int32_t Choose(const LpSeries::Answer& answer);

  const TreeProgram& tree_;
  TreeParts& parts_;
  const std::function<bool()> should_stop_;
  // Of the part that grows.
  TreePart* part_ = nullptr;
  verify::Domain* domain_ = nullptr;
  std::vector<Branching> open_;
  // Made for the first part, and what was fixed where the last one began.
  std::optional<LpSeries> series_;
  std::vector<int32_t> begun_with_;
};

}  // namespace reprise::planner
