// SPDX-License-Identifier: Apache-2.0
//
// A series of linear programs: the relaxation of one program under changing
// column bounds, each solved from the end of the last, with the multipliers of
// its rows. Used for certificates (certify.h), which do not trust the solver:
// the caller evaluates the multipliers exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "planner/bounds/mip.h"

namespace reprise::planner {

class LpSeries {
 public:
  struct Answer {
    // kOptimal, kInfeasibleProven or kStopped.
    MipOutcome outcome = MipOutcome::kStopped;
    double cost = 0;
    std::vector<double> solution = {};
    // By row: of the cost or, if the rows have no solution, of a sum of rows
    // that cannot hold (with the solver's sign).
    std::vector<double> multipliers = {};
  };

  // The program and should_stop must outlive the series.
  LpSeries(const MipProgram& program, const std::function<bool()>& should_stop);
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
