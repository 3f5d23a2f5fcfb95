// SPDX-License-Identifier: Apache-2.0
//
// A mixed-integer program, and the interface to a solver for it.
//
//   minimise    sum cost[j] * x[j]
//   subject to  row_lower[i] <= sum of entries of row i <= row_upper[i]
//               lower[j] <= x[j] <= upper[j], x[j] whole where integer[j]
//
// The only solver behind this interface is CBC (COIN-OR), compiled in if the
// build finds it (mip_cbc.cc). Without it, `MipAvailable` is false and SolveMip
// proves nothing (mip_none.cc): callers keep the bounds they have. Effort is
// counted in nodes, never in seconds: the same program and options give the
// same answer with the same build of CBC.
//
// Coefficients should be exact in double (integers times a power of two). Then
// what CBC proves within its tolerances is proven up to the relative
// `kMipTolerance`, which callers subtract from the bound.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace reprise::planner {

inline constexpr double kMipInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kMipTolerance = 1e-6;

struct MipProgram {
  // By column.
  std::vector<double> cost, lower, upper;
  std::vector<uint8_t> integer;
  // By row; entries in CSR. row_begin has one more entry at the end.
  std::vector<double> row_lower, row_upper;
  std::vector<int32_t> row_begin = {0};
  std::vector<int32_t> column;
  std::vector<double> value;

  int column_count() const { return static_cast<int>(cost.size()); }
  int row_count() const { return static_cast<int>(row_lower.size()); }

  // Returns the number of the new column.
  int32_t AddColumn(double cost_of, double from, double to, bool whole);
  // Entries are added one by one; CloseRow ends the row.
  void AddEntry(int32_t column_of, double value_of);
  void CloseRow(double from, double to);
};

struct MipOptions {
  int most_nodes = 1000;
  // Solutions of at least this cost are not of interest. If nothing cheaper
  // exists, the outcome is kCutoffProven and the bound is the cutoff.
  double cutoff = kMipInfinity;
  // The search ends at this relative gap.
  double gap = 0;
  // Called between nodes and rounds of cuts, and inside simplex solves.
  std::function<bool()> should_stop = {};
};

// What a solve proves. An interrupted solve (should_stop returned true at any
// time, or the solver gave up) is kStopped and proves nothing: an interrupted
// simplex looks like an infeasible one to the tree around it, so neither "no
// solution", nor "nothing cheaper", nor the tree's bound can be trusted. Only a
// solution can, because the caller checks it anyway. A node limit ends a tree
// between nodes, so its bound holds: kBounded.
enum class MipOutcome : uint8_t {
  kStopped,
  kBounded,           // a bound; more effort may raise it
  kOptimal,           // the solution is optimal, the bound is its cost
  kCutoffProven,      // nothing is cheaper than the cutoff
  kInfeasibleProven,  // no solution exists; never if a cutoff was given
};

struct MipAnswer {
  MipOutcome outcome = MipOutcome::kStopped;
  // Proven, before the tolerance; -infinity if stopped.
  double bound = -kMipInfinity;
  bool has_solution = false;
  double cost = kMipInfinity;  // of the solution
  std::vector<double> solution = {};
  int64_t nodes = 0;
  int64_t iterations = 0;

  bool stopped() const { return outcome == MipOutcome::kStopped; }
  bool infeasible() const { return outcome == MipOutcome::kInfeasibleProven; }
  // Returns whether more effort could not raise the bound.
  bool finished() const {
    return outcome != MipOutcome::kStopped && outcome != MipOutcome::kBounded;
  }
};

// Returns whether this build has a MIP solver.
bool MipAvailable();

// Returns a power of two that scales `largest` into [1/2, 1).
double MipScale(int64_t largest);
// Costs are scaled so that the base time is about 2^kMipCostBits, because the
// dual tolerances of the simplex are absolute.
inline constexpr int kMipCostBits = 14;

// Solves the program with integers relaxed: one simplex solve. The outcome is
// kOptimal, kInfeasibleProven or kStopped.
MipAnswer SolveLp(const MipProgram& program,
                  const std::function<bool()>& should_stop);

// Solves the program by branch and cut.
MipAnswer SolveMip(const MipProgram& program, const MipOptions& options);

}  // namespace reprise::planner
