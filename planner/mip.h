// SPDX-License-Identifier: Apache-2.0
//
// A mixed-integer program, and whoever can solve it.
//
//   minimise    sum cost[j] * x[j]
//   subject to  row_lower[i] <= sum of entries of row i <= row_upper[i]
//               lower[j] <= x[j] <= upper[j], x[j] whole where integer[j]
//
// The only solver behind this interface is CBC (COIN-OR), compiled in where the
// build finds it (mip_cbc.cc); without it `MipAvailable` is false and SolveMip
// reports nothing (mip_none.cc): callers keep the bounds they have. Effort is
// counted in nodes and never in seconds: the same program and options give the
// same answer with the same build of CBC.
//
// Coefficients should be exact in double (integers times a power of two): then
// what CBC proves within its tolerances is proven up to `kMipTolerance`,
// relative, which callers take off the bound.
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
  // By row, entries in CSR; row_begin has one more at the end.
  std::vector<double> row_lower, row_upper;
  std::vector<int32_t> row_begin = {0};
  std::vector<int32_t> column;
  std::vector<double> value;

  int column_count() const { return static_cast<int>(cost.size()); }
  int row_count() const { return static_cast<int>(row_lower.size()); }

  int32_t AddColumn(double cost_of, double from, double to, bool whole);
  // Entries are added one by one, then the row is closed.
  void AddEntry(int32_t column_of, double value_of);
  void CloseRow(double from, double to);
};

struct MipOptions {
  int most_nodes = 1000;
  // Solutions of at least this cost are of no interest. Where nothing cheaper
  // exists, the answer is `nothing_cheaper` and the bound is the cutoff.
  double cutoff = kMipInfinity;
  // Relative gap at which the search ends.
  double gap = 0;
  // Asked between nodes and rounds of cuts.
  std::function<bool()> should_stop = {};
};

struct MipAnswer {
  bool solved = false;    // a bound was found
  bool finished = false;  // and more effort would not raise it
  // No solution exists at all. Never set where a cutoff was given: there
  // "infeasible" means that nothing is cheaper.
  bool infeasible = false;
  bool nothing_cheaper = false;
  double bound = -kMipInfinity;  // proven, before the tolerance
  bool has_solution = false;
  double cost = kMipInfinity;  // of the solution
  std::vector<double> solution = {};
  int64_t nodes = 0;
  int64_t iterations = 0;
};

bool MipAvailable();

// A power of two that brings `largest` into [1/2, 1).
double MipScale(int64_t largest);
// Costs are scaled so that the base time is about two to this: the dual
// tolerances of simplex are absolute.
inline constexpr int kMipCostBits = 14;

// With integers relaxed: the LP. One simplex solve.
MipAnswer SolveLp(const MipProgram& program,
                  const std::function<bool()>& should_stop);

MipAnswer SolveMip(const MipProgram& program, const MipOptions& options);

}  // namespace reprise::planner
