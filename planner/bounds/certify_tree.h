// SPDX-License-Identifier: Apache-2.0
//
// Bounds of several windows, and their certificates: a tree of linear programs
// over the verifier's own program, grown until every leaf proves the claim. The
// bound to reach is known, so the tree is grown depth first, and a leaf ends as
// soon as its multipliers, evaluated exactly, prove it.
//
// What survives an interruption: of a tree that was not completed, nothing but
// what its root proves, if that was solved to its end. Every bound is the
// verifier's evaluation of multipliers, so an LP that a solver gave up proves
// less, never more.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "planner/bounds/certify.h"
#include "planner/bounds/window_bound.h"

namespace reprise::planner {

class ProgramTree;

// Certifies at most `added_ns`; what the root proves, if the tree was not
// completed.
verify::Certificate CertifyProgram(const verify::Facts& facts,
                                   int64_t budget_bytes,
                                   const ProofSource& source, int64_t added_ns,
                                   const CertifyLimits& limits);

// Certifies that nothing fits in less than `least_bytes`. Returns method kNone
// if the tree was not completed.
verify::Certificate CertifyImpossible(const verify::Facts& facts,
                                      int64_t least_bytes,
                                      const ProofSource& source,
                                      const CertifyLimits& limits);

struct Refutation {
  enum class Outcome : uint8_t {
    kStopped,  // by a limit; nothing is known
    kProven,
    kCheaper,  // the program has a solution that adds less
  };
  Outcome outcome = Outcome::kStopped;
  int64_t added_ns = 0;  // proven, or the added time of the solution
  TreeProof root = {};   // what the root proves alone
  TreeProof proof = {};  // if kProven
  // The cheapest such solution found: what it keeps at each window, and what it
  // runs again in the segment that follows.
  std::vector<KeepSet> keep_sets = {};
  int64_t iterations = 0;  // of the simplex
  int64_t solves = 0;      // linear programs solved
  int64_t rows = 0;        // 0: nothing was solved

  bool is_proven() const { return outcome == Outcome::kProven; }
  int64_t proven_ns() const {
    return is_proven() ? proof.added_ns : root.added_ns;
  }
};

// Answers what these windows alone prove: whether every schedule adds at least
// the added time of a known one, or how much every schedule adds. A search asks
// the first to learn whether its best plan is optimal. Later calls start from
// what earlier ones learned.
class Refuter {
 public:
  // The problem and the facts must outlive it. `inside` includes the memory
  // inside segments, which pays if windows are neighbours.
  Refuter(const Problem& problem, const verify::Facts& facts,
          int64_t budget_bytes, std::vector<OpId> windows, bool inside = false);
  ~Refuter();

  const std::vector<OpId>& windows() const { return windows_; }
  bool inside() const { return inside_; }
  // The columns of its program; more than there can be if it was not built.
  int columns() const;
  // Returns about how many ticks its relaxation takes, and with how many it is
  // worth looking for the optimum.
  int64_t RootTicks() const;
  int64_t LeastTicks() const;
  // Costs of a linear program and of an iteration in ticks, as measured.
  static int64_t SolveTicks(int64_t rows) { return 1000 + 25 * rows; }
  static int64_t IterationTicks(int64_t rows) { return 500 + rows / 2; }
  // Tries to prove that every schedule adds at least `added_ns`. With
  // `to_optimum` it continues when it finds something cheaper, until nothing
  // is: the proven time is then the optimum of the program, with its solution.
  Refutation Cheaper(int64_t added_ns, bool to_optimum,
                     const CertifyLimits& limits);

 private:
  const Problem& problem_;
  const std::vector<OpId> windows_;
  const bool inside_;
  const std::unique_ptr<ProgramTree> tree_;
};

}  // namespace reprise::planner
