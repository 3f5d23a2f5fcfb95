// SPDX-License-Identifier: Apache-2.0
//
// A linear program, and the interface to a solver for it.
//
//   minimise    sum cost[j] * x[j]
//   subject to  row_lower[i] <= sum of entries of row i <= row_upper[i]
//               lower[j] <= x[j] <= upper[j]
//
// The only solver behind this interface is Clp (COIN-OR), compiled in if the
// build finds it (lp_clp.cc). Without it, `HasLpSolver` is false and every solve
// is stopped (lp_none.cc): callers keep the bounds they have. Nothing here is
// trusted: callers evaluate multipliers exactly (verify/program.h), and what an
// interrupted solve reports is not used.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

namespace reprise::planner {

inline constexpr double kLpInfinity = std::numeric_limits<double>::infinity();

struct LinearProgram {
  // By column.
  std::vector<double> cost, lower, upper;
  // By row; entries in CSR. row_begin has one more entry at the end.
  std::vector<double> row_lower, row_upper;
  std::vector<int32_t> row_begin = {0};
  std::vector<int32_t> column;
  std::vector<double> value;

  int column_count() const { return static_cast<int>(cost.size()); }
  int row_count() const { return static_cast<int>(row_lower.size()); }

  // Returns the number of the new column.
  int32_t AddColumn(double cost_of, double from, double to);
  // Entries are added one by one; CloseRow ends the row.
  void AddEntry(int32_t column_of, double value_of);
  void CloseRow(double from, double to);
};

// Returns whether this build has a solver.
bool HasLpSolver();

// Returns a power of two that scales `largest` into [1/2, 1).
double LpScale(int64_t largest);
// Costs are scaled so that the base time is about 2^kLpCostBits, because the
// dual tolerances of the simplex are absolute.
inline constexpr int kLpCostBits = 14;

enum class LpOutcome : uint8_t { kStopped, kOptimal, kInfeasible };

// A series of solves of one program under changing column bounds, each from the
// end of the last, with the multipliers of its rows.
class LpSeries {
 public:
  struct Answer {
    LpOutcome outcome = LpOutcome::kStopped;
    double cost = 0;
    std::vector<double> solution = {};
    // By row: of the cost or, if the rows have no solution, of a sum of rows
    // that cannot hold (with the solver's sign).
    std::vector<double> multipliers = {};
  };

  // The program and should_stop must outlive the series.
  LpSeries(const LinearProgram& program,
           const std::function<bool()>& should_stop);
  ~LpSeries();

  // Continues from the basis of another series of the same program.
  void BeginFrom(const std::vector<uint8_t>& basis);
  // Changes the bounds of a column for the next Solve.
  void SetBounds(int32_t column, double lower, double upper);
  // Solves with at most this many simplex iterations. An LP that needs more is
  // kStopped, but `cost` is the value it reached, which helps branching.
  Answer Solve(int most_iterations);
  // Simplex iterations so far.
  int64_t iterations() const;
  // Returns the current basis.
  std::vector<uint8_t> Basis() const;

 private:
  class Solver;
  std::unique_ptr<Solver> solver_;
};

}  // namespace reprise::planner
