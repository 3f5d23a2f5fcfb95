// SPDX-License-Identifier: Apache-2.0
//
// Implements lp.h with Clp. It uses no global variables of the library, so
// series in several threads are independent.
#include "planner/bounds/lp.h"

#include <algorithm>
#include <coin/ClpEventHandler.hpp>
#include <coin/ClpSimplex.hpp>
#include <coin/CoinMessageHandler.hpp>
#include <coin/CoinPackedMatrix.hpp>
#include <limits>

namespace reprise::planner {
namespace {

class Quiet : public CoinMessageHandler {
 public:
  int print() override { return 0; }
  CoinMessageHandler* clone() const override { return new Quiet(*this); }
};

class StopHandler : public ClpEventHandler {
 public:
  StopHandler(const std::function<bool()>& should_stop, bool& stopped)
      : should_stop_(should_stop), stopped_(stopped) {}
  int event(Event which) override {
    if (which != endOfFactorization || !should_stop_) return -1;
    stopped_ = stopped_ || should_stop_();
    return stopped_ ? 5 : -1;
  }
  ClpEventHandler* clone() const override { return new StopHandler(*this); }

 private:
  const std::function<bool()>& should_stop_;
  bool& stopped_;
};

double Finite(double value) {
  return std::clamp(value, -COIN_DBL_MAX, COIN_DBL_MAX);
}

}  // namespace

bool HasLpSolver() { return true; }

class LpSeries::Solver {
 public:
  Solver(const LinearProgram& program, const std::function<bool()>& should_stop)
      : handler_(should_stop, stopped_) {
    std::vector<int> lengths(program.row_count());
    std::vector<CoinBigIndex> starts(program.row_count() + 1);
    std::vector<double> upper, row_lower, row_upper;
    for (const double bound : program.upper) upper.push_back(Finite(bound));
    for (int i = 0; i < program.row_count(); ++i) {
      starts[i] = program.row_begin[i];
      lengths[i] = program.row_begin[i + 1] - program.row_begin[i];
      row_lower.push_back(Finite(program.row_lower[i]));
      row_upper.push_back(Finite(program.row_upper[i]));
    }
    starts[program.row_count()] = program.row_begin[program.row_count()];
    const CoinPackedMatrix matrix(
        /*colordered=*/false, program.column_count(), program.row_count(),
        static_cast<CoinBigIndex>(program.column.size()), program.value.data(),
        program.column.data(), starts.data(), lengths.data());
    model_.passInMessageHandler(&quiet_);
    model_.setLogLevel(0);
    model_.loadProblem(matrix, program.lower.data(), upper.data(),
                       program.cost.data(), row_lower.data(), row_upper.data());
    model_.passInEventHandler(&handler_);
  }

  void BeginFrom(const std::vector<uint8_t>& basis) {
    model_.copyinStatus(basis.data());
    factorized_ = false;
  }
  std::vector<uint8_t> Basis() const {
    const unsigned char* status = model_.statusArray();
    if (status == nullptr) return {};
    return {status, status + model_.numberColumns() + model_.numberRows()};
  }

  void SetBounds(int32_t column, double lower, double upper) {
    model_.setColumnBounds(column, lower, upper);
  }

  Answer Solve(int most_iterations) {
    if (model_.numberColumns() == 0) return WithoutColumns();
    stopped_ = false;
    model_.setMaximumIterations(most_iterations);
    // Keeps arrays between solves, and the factorization if it is for this
    // basis.
    constexpr int kArrays = 1, kFactorization = 2;
    model_.dual(0, factorized_ ? kArrays | kFactorization : kArrays);
    factorized_ = true;
    iterations_ += model_.numberIterations();
    Answer answer{.cost = model_.objectiveValue()};
    if (stopped_) return answer;
    if (model_.isProvenOptimal()) {
      answer.outcome = LpOutcome::kOptimal;
      answer.solution.assign(
          model_.primalColumnSolution(),
          model_.primalColumnSolution() + model_.numberColumns());
      answer.multipliers.assign(model_.dualRowSolution(),
                                model_.dualRowSolution() + model_.numberRows());
    } else if (model_.isProvenPrimalInfeasible()) {
      answer.outcome = LpOutcome::kInfeasible;
      answer.cost = kLpInfinity;
      const std::unique_ptr<double[]> ray(model_.infeasibilityRay());
      if (ray != nullptr) {
        answer.multipliers.assign(ray.get(), ray.get() + model_.numberRows());
      }
    }
    return answer;
  }

  int64_t iterations() const { return iterations_; }

 private:
  // Every row must hold for an empty sum; one that does not is the proof.
  Answer WithoutColumns() const {
    Answer answer{.outcome = LpOutcome::kOptimal};
    answer.multipliers.assign(model_.numberRows(), 0);
    for (int i = 0; i < model_.numberRows(); ++i) {
      if (model_.rowLower()[i] <= 0 && model_.rowUpper()[i] >= 0) continue;
      answer.outcome = LpOutcome::kInfeasible;
      answer.cost = kLpInfinity;
      answer.multipliers[i] = model_.rowLower()[i] > 0 ? 1 : -1;
      break;
    }
    return answer;
  }

  Quiet quiet_;
  bool stopped_ = false;
  StopHandler handler_;
  ClpSimplex model_;
  bool factorized_ = false;
  int64_t iterations_ = 0;
};

LpSeries::LpSeries(const LinearProgram& program,
                   const std::function<bool()>& should_stop)
    : solver_(std::make_unique<Solver>(program, should_stop)) {}
LpSeries::~LpSeries() = default;

void LpSeries::BeginFrom(const std::vector<uint8_t>& basis) {
  solver_->BeginFrom(basis);
}

void LpSeries::SetBounds(int32_t column, double lower, double upper) {
  solver_->SetBounds(column, lower, upper);
}

LpSeries::Answer LpSeries::Solve(int most_iterations) {
  return solver_->Solve(most_iterations);
}

int64_t LpSeries::iterations() const { return solver_->iterations(); }

std::vector<uint8_t> LpSeries::Basis() const { return solver_->Basis(); }

}  // namespace reprise::planner
