// SPDX-License-Identifier: Apache-2.0
//
// Implements mip.h with CBC: its preprocessing, cuts and heuristics (CbcMain1),
// one thread, a node limit. CbcMain1 reads its commands through global
// variables of the library, so solves take turns; a thread that waits for its
// turn still calls should_stop (MipTest.SolvesOnSeveralThreadsAgree).
//
// CBC reports a tree in which a simplex was stopped as finished, with the node
// as infeasible. So one function (OutcomeOf) decides what a solve proves: first
// by whether it was told to stop, and only then by CBC's status.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <coin/CbcEventHandler.hpp>
#include <coin/CbcModel.hpp>
#include <coin/CbcSolver.hpp>
#include <coin/ClpEventHandler.hpp>
#include <coin/ClpSimplex.hpp>
#include <coin/CoinMessageHandler.hpp>
#include <coin/CoinPackedMatrix.hpp>
#include <coin/OsiClpSolverInterface.hpp>
#include <semaphore>
#include <string>
#include <vector>

#include "planner/bounds/mip.h"

namespace reprise::planner {
namespace {

// Remembers whether a solve was told to stop at any time. Shared by the
// handlers, because CBC and Clp clone them.
class Interruption {
 public:
  explicit Interruption(const std::function<bool()>& should_stop)
      : should_stop_(should_stop) {}

  // Once true, it stays true: a half-solved node cannot be repaired later.
  bool Ask() {
    if (!stopped_ && should_stop_ && should_stop_()) stopped_ = true;
    return stopped_;
  }
  bool stopped() const { return stopped_; }
  bool possible() const { return static_cast<bool>(should_stop_); }

 private:
  const std::function<bool()>& should_stop_;
  bool stopped_ = false;
};

// Calls should_stop between nodes and rounds of cuts. `interruption` must
// outlive the solver.
class StopBetweenNodes : public CbcEventHandler {
 public:
  explicit StopBetweenNodes(Interruption& interruption)
      : interruption_(interruption) {}
  CbcAction event(CbcEvent) override {
    return interruption_.Ask() ? stop : noAction;
  }
  CbcAction event(CbcEvent which, void*) override { return event(which); }
  CbcEventHandler* clone() const override {
    return new StopBetweenNodes(*this);
  }

 private:
  Interruption& interruption_;
};

// Calls should_stop inside a simplex solve, every few factorizations.
class StopInSimplex : public ClpEventHandler {
 public:
  explicit StopInSimplex(Interruption& interruption)
      : interruption_(interruption) {}
  int event(Event which) override {
    if (which != endOfFactorization) return -1;
    return interruption_.Ask() ? 5 : -1;
  }
  ClpEventHandler* clone() const override { return new StopInSimplex(*this); }

 private:
  Interruption& interruption_;
};

// Suppresses output: these libraries print to stdout, and log levels do not
// suppress all of it (presolve, after an interrupted simplex).
class Silent : public CoinMessageHandler {
 public:
  int print() override { return 0; }
  CoinMessageHandler* clone() const override { return new Silent(*this); }
};

// Loads the program. `silent` must outlive the solver.
void Load(const MipProgram& program, OsiClpSolverInterface& solver,
          Silent& silent) {
  solver.passInMessageHandler(&silent);
  solver.setHintParam(OsiDoReducePrint, true, OsiHintTry);
  const int columns = program.column_count();
  const int rows = program.row_count();
  std::vector<int> lengths(rows);
  std::vector<CoinBigIndex> starts(rows + 1);
  for (int i = 0; i < rows; ++i) {
    starts[i] = program.row_begin[i];
    lengths[i] = program.row_begin[i + 1] - program.row_begin[i];
  }
  starts[rows] = program.row_begin[rows];
  const CoinPackedMatrix matrix(
      /*colordered=*/false, columns, rows,
      static_cast<CoinBigIndex>(program.column.size()), program.value.data(),
      program.column.data(), starts.data(), lengths.data());
  const auto finite = [](std::vector<double> values) {
    for (double& value : values) {
      value = std::clamp(value, -COIN_DBL_MAX, COIN_DBL_MAX);
    }
    return values;
  };
  solver.loadProblem(matrix, finite(program.lower).data(),
                     finite(program.upper).data(), program.cost.data(),
                     finite(program.row_lower).data(),
                     finite(program.row_upper).data());
}

std::binary_semaphore& Turn() {
  static std::binary_semaphore turn{1};
  return turn;
}
struct EndTurn {
  ~EndTurn() { Turn().release(); }
};

// Solves a program without columns: every row must hold for an empty sum.
MipAnswer WithoutColumns(const MipProgram& program) {
  for (int i = 0; i < program.row_count(); ++i) {
    if (program.row_lower[i] > 0 || program.row_upper[i] < 0) {
      return {.outcome = MipOutcome::kInfeasibleProven, .bound = kMipInfinity};
    }
  }
  return {.outcome = MipOutcome::kOptimal,
          .bound = 0,
          .has_solution = true,
          .cost = 0};
}

// Returns what a tree proves: nothing if it was told to stop or CBC had
// difficulties (status 2).
MipOutcome OutcomeOf(const CbcModel& model, const Interruption& interruption,
                     bool has_solution, bool has_cutoff) {
  if (interruption.stopped()) return MipOutcome::kStopped;
  if (model.status() == 1) return MipOutcome::kBounded;
  if (model.status() != 0) return MipOutcome::kStopped;
  if (has_solution) return MipOutcome::kOptimal;
  return has_cutoff ? MipOutcome::kCutoffProven : MipOutcome::kInfeasibleProven;
}

}  // namespace

bool MipAvailable() { return true; }

MipAnswer SolveLp(const MipProgram& program,
                  const std::function<bool()>& should_stop) {
  if (program.column_count() == 0) return WithoutColumns(program);
  Silent silent;
  OsiClpSolverInterface solver;
  Load(program, solver, silent);
  Interruption interruption(should_stop);
  if (interruption.possible()) {
    const StopInSimplex handler(interruption);
    solver.getModelPtr()->passInEventHandler(&handler);
  }
  solver.initialSolve();
  MipAnswer answer;
  answer.iterations = solver.getIterationCount();
  if (interruption.stopped()) return answer;
  if (solver.isProvenPrimalInfeasible()) {
    answer.outcome = MipOutcome::kInfeasibleProven;
    answer.bound = kMipInfinity;
  } else if (solver.isProvenOptimal()) {
    answer.outcome = MipOutcome::kOptimal;
    answer.has_solution = true;
    answer.bound = answer.cost = solver.getObjValue();
    answer.solution.assign(solver.getColSolution(),
                           solver.getColSolution() + program.column_count());
  }
  return answer;
}

MipAnswer SolveMip(const MipProgram& program, const MipOptions& options) {
  if (program.column_count() == 0) return WithoutColumns(program);
  Interruption interruption(options.should_stop);
  while (!Turn().try_acquire_for(std::chrono::milliseconds(20))) {
    if (interruption.Ask()) return {};
  }
  const EndTurn end_turn;
  Silent silent;
  OsiClpSolverInterface solver;
  Load(program, solver, silent);
  for (int j = 0; j < program.column_count(); ++j) {
    if (program.integer[j] != 0) solver.setInteger(j);
  }
  CbcModel model(solver);
  CbcSolverUsefulData parameters;
  parameters.noPrinting_ = true;
  parameters.useSignalHandler_ = false;
  CbcMain0(model, parameters);
  model.passInMessageHandler(&silent);
  model.solver()->passInMessageHandler(&silent);
  model.setLogLevel(0);
  if (interruption.possible()) {
    StopBetweenNodes handler(interruption);
    model.passInEventHandler(&handler);
    auto* clp = dynamic_cast<OsiClpSolverInterface*>(model.solver());
    const StopInSimplex inner(interruption);
    if (clp != nullptr) clp->getModelPtr()->passInEventHandler(&inner);
  }
  std::vector<std::string> arguments = {
      "reprise", "-log", "0", "-maxNodes",
      std::to_string(std::max(1, options.most_nodes)), "-ratioGap",
      std::to_string(options.gap),
      // They are dense; without them, the same is proven in half the time.
      "-gomoryCuts", "off"};
  const bool has_cutoff = std::isfinite(options.cutoff);
  if (has_cutoff) {
    arguments.push_back("-cutoff");
    arguments.push_back(std::to_string(options.cutoff));
  }
  arguments.push_back("-solve");
  arguments.push_back("-quit");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  CbcMain1(
      static_cast<int>(argv.size()), argv.data(), model,
      [](CbcModel*, int) { return 0; }, parameters);

  MipAnswer answer;
  answer.nodes = model.getNodeCount();
  answer.iterations = model.getIterationCount();
  const double* solution = model.bestSolution();
  if (solution != nullptr && model.getObjValue() < 1e30) {
    answer.has_solution = true;
    answer.cost = model.getObjValue();
    answer.solution.assign(solution, solution + program.column_count());
  }
  answer.outcome =
      OutcomeOf(model, interruption, answer.has_solution, has_cutoff);
  const double bound = model.getBestPossibleObjValue();
  switch (answer.outcome) {
    case MipOutcome::kStopped:
      break;
    case MipOutcome::kInfeasibleProven:
      answer.bound = kMipInfinity;
      break;
    case MipOutcome::kCutoffProven:
      answer.bound = options.cutoff;
      break;
    case MipOutcome::kBounded:
    case MipOutcome::kOptimal:
      if (!std::isfinite(bound) || std::abs(bound) >= 1e30) {
        answer.outcome = MipOutcome::kStopped;
        break;
      }
      answer.bound = answer.has_solution ? std::min(bound, answer.cost) : bound;
      if (has_cutoff) answer.bound = std::min(answer.bound, options.cutoff);
  }
  return answer;
}

}  // namespace reprise::planner
