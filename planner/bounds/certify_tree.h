// SPDX-License-Identifier: Apache-2.0
//
// Certificates of several windows: a tree of linear programs over the
// verifier's own program, until every leaf proves what was claimed. The bound
// to reach is known, so the tree is walked depth first and each leaf ends as
// soon as its multipliers, evaluated exactly, say enough.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "planner/bounds/certify.h"
#include "planner/bounds/window_bound.h"

namespace reprise::planner {

class ProgramTree;

// At most `added_ns`; what the root proves where the tree did not end.
verify::Certificate CertifyProgram(const verify::Facts& facts,
                                   int64_t budget_bytes,
                                   const ProofSource& source, int64_t added_ns,
                                   const CertifyLimits& limits);

// That nothing fits in less than `least_bytes`; method kNone where the tree did
// not end.
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
  int64_t added_ns = 0;  // what is proven, or what the solution adds
  int64_t root_ns = 0;   // proven by the root alone
  // Of the cheapest such solution that was found, as of ManyWindowsResult.
  std::vector<KeepSet> keep_sets = {};
  std::vector<verify::Node> tree = {};  // kProven: the proof
  int64_t iterations = 0;               // of simplex
  int64_t solves = 0;                   // linear programs
  int64_t rows = 0;
};

// Whether these windows prove by themselves that every schedule adds at least
// so much, which some schedule does: of a search that wants to know that its
// best plan is optimal. Asked again, it begins with what it learned.
class Refuter {
 public:
  // Problem and facts outlive it.
  Refuter(const Problem& problem, const verify::Facts& facts,
          int64_t budget_bytes, std::vector<OpId> windows);
  ~Refuter();

  const std::vector<OpId>& windows() const { return windows_; }
  // `to_optimum`: goes on where something adds less, until nothing does: proven
  // is then the optimum of the program, and found its solution.
  Refutation Cheaper(int64_t added_ns, bool to_optimum,
                     const CertifyLimits& limits);

 private:
  const Problem& problem_;
  const std::vector<OpId> windows_;
  const std::unique_ptr<ProgramTree> tree_;
};

}  // namespace reprise::planner
