// SPDX-License-Identifier: Apache-2.0
//
// Linear programs one after the other: the relaxation of one program under
// changing bounds of its columns, each solved from where the last one ended,
// with the multipliers of its rows. For certificates (certify.h), which take
// nothing from the solver on trust: whoever calls evaluates the multipliers
// exactly.
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
    // By row: of the cost, or, where nothing obeys the rows, of a sum of rows
    // that cannot hold (its sign is the solver's).
    std::vector<double> multipliers = {};
  };

  // The program and should_stop outlive the series.
  LpSeries(const MipProgram& program, const std::function<bool()>& should_stop);
  ~LpSeries();

  // Goes on where another series of the same program was.
  void BeginFrom(const std::vector<uint8_t>& basis);
  void SetBounds(int32_t column, double lower, double upper);
  // At most this many iterations; an LP that needs more is kStopped, but
  // `cost` is how far it came, which is what branching wants to know.
  Answer Solve(int most_iterations);
  int64_t iterations() const;
  // Where it is.
  std::vector<uint8_t> Basis() const;

 private:
  class Solver;
  std::unique_ptr<Solver> solver_;
};

}  // namespace reprise::planner
