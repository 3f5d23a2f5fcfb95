// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/lp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "planner/model/random.h"

namespace reprise::planner {
namespace {

// Up to 12 binary columns, costs of both signs, up to 4 rows.
LinearProgram RandomProgram(Random& random) {
  LinearProgram program;
  const int columns = 3 + random.Below(10);
  for (int j = 0; j < columns; ++j) {
    program.AddColumn(random.Below(21) - 8, 0, 1);
  }
  for (int i = 1 + random.Below(4); i > 0; --i) {
    for (int j = 0; j < columns; ++j) {
      if (random.Percent(60)) program.AddEntry(j, random.Below(13) - 3);
    }
    if (random.Percent(50)) {
      program.CloseRow(-kLpInfinity, random.Below(12));
    } else {
      program.CloseRow(random.Below(12), kLpInfinity);
    }
  }
  return program;
}

// Returns the least cost of all 2^n choices, or infinity if none obeys the
// rows.
double BruteForce(const LinearProgram& program) {
  double best = kLpInfinity;
  for (int bits = 0; bits < 1 << program.column_count(); ++bits) {
    double cost = 0;
    bool fits = true;
    for (int j = 0; j < program.column_count(); ++j) {
      if ((bits >> j & 1) != 0) cost += program.cost[j];
    }
    for (int i = 0; i < program.row_count() && fits; ++i) {
      double sum = 0;
      for (int e = program.row_begin[i]; e < program.row_begin[i + 1]; ++e) {
        if ((bits >> program.column[e] & 1) != 0) sum += program.value[e];
      }
      fits = sum >= program.row_lower[i] && sum <= program.row_upper[i];
    }
    if (fits) best = std::min(best, cost);
  }
  return best;
}

constexpr int kMany = 100'000;

LpSeries::Answer Solve(const LinearProgram& program,
                       const std::function<bool()>& should_stop = {}) {
  return LpSeries(program, should_stop).Solve(kMany);
}

TEST(LpTest, TheRelaxationIsNeverAboveBruteForce) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  Random random(51);
  int infeasible = 0, whole = 0;
  for (int i = 0; i < 150; ++i) {
    const LinearProgram program = RandomProgram(random);
    const double optimum = BruteForce(program);
    SCOPED_TRACE("program " + std::to_string(i));

    const LpSeries::Answer relaxed = Solve(program);

    ASSERT_NE(relaxed.outcome, LpOutcome::kStopped);
    infeasible += relaxed.outcome == LpOutcome::kInfeasible;
    if (std::isinf(optimum)) continue;
    ASSERT_EQ(relaxed.outcome, LpOutcome::kOptimal);
    EXPECT_LE(relaxed.cost, optimum + 1e-6);
    bool is_whole = true;
    for (const double x : relaxed.solution) {
      is_whole = is_whole && std::abs(x - std::round(x)) < 1e-9;
    }
    if (!is_whole) continue;
    ++whole;
    EXPECT_NEAR(relaxed.cost, optimum, 1e-6);
  }
  EXPECT_GT(infeasible, 5);
  EXPECT_GT(whole, 20);
}

TEST(LpTest, FixedColumnsAndABasisOfAnotherSeriesChangeNothingElse) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  Random random(54);
  int different = 0;
  for (int i = 0; i < 60; ++i) {
    LinearProgram program = RandomProgram(random);
    const std::function<bool()> never;
    LpSeries series(program, never);
    const double before = series.Solve(kMany).cost;
    series.SetBounds(0, 1, 1);
    const LpSeries::Answer fixed = series.Solve(kMany);
    series.SetBounds(0, 0, 1);
    const LpSeries::Answer after = series.Solve(kMany);
    SCOPED_TRACE("program " + std::to_string(i));

    program.lower[0] = 1;
    LpSeries fresh(program, never);
    fresh.BeginFrom(series.Basis());
    const LpSeries::Answer other = fresh.Solve(kMany);

    EXPECT_EQ(fixed.outcome, other.outcome);
    if (fixed.outcome == LpOutcome::kOptimal) {
      EXPECT_NEAR(fixed.cost, other.cost, 1e-6);
      different += std::abs(fixed.cost - before) > 1e-6;
    }
    if (after.outcome == LpOutcome::kOptimal) {
      EXPECT_NEAR(after.cost, before, 1e-6);
    }
  }
  EXPECT_GT(different, 10);
}

// Rows of both signs over more columns than the root node can settle.
LinearProgram LargerProgram(Random& random) {
  LinearProgram program;
  for (int j = 0; j < 14; ++j) {
    program.AddColumn(1 + random.Below(40), 0, 1);
  }
  for (int i = 0; i < 10; ++i) {
    for (int j = 0; j < 14; ++j) {
      if (random.Percent(50)) program.AddEntry(j, 1 + random.Below(30));
    }
    program.CloseRow(20 + random.Below(30), kLpInfinity);
  }
  return program;
}

TEST(LpTest, AnInterruptedSolveReportsNothing) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  Random random(53);
  int stopped = 0;
  for (int i = 0; i < 6; ++i) {
    const LinearProgram program = LargerProgram(random);
    const LpSeries::Answer whole = Solve(program);
    for (int k = 0;; ++k) {
      SCOPED_TRACE("program " + std::to_string(i) + " stopped at " +
                   std::to_string(k));
      int asked = 0;
      const LpSeries::Answer answer =
          Solve(program, [&] { return asked++ >= k; });
      const bool over = asked <= k;
      EXPECT_EQ(answer.outcome, over ? whole.outcome : LpOutcome::kStopped);
      stopped += answer.outcome == LpOutcome::kStopped;
      if (over || testing::Test::HasFailure()) break;
    }
  }
  EXPECT_GT(stopped, 5);
}

TEST(LpTest, AProgramWithoutColumnsIsDecidedByItsRows) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  LinearProgram program;
  program.CloseRow(-kLpInfinity, 3);
  EXPECT_EQ(Solve(program).outcome, LpOutcome::kOptimal);
  program.CloseRow(1, kLpInfinity);
  EXPECT_EQ(Solve(program).outcome, LpOutcome::kInfeasible);
}

TEST(LpTest, SolvesOnSeveralThreadsAgree) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  Random random(52);
  std::vector<LinearProgram> programs;
  std::vector<double> costs;
  for (int i = 0; i < 40; ++i) {
    programs.push_back(RandomProgram(random));
    costs.push_back(Solve(programs.back()).cost);
  }
  std::vector<int> different(3, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < different.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < programs.size(); ++i) {
        const size_t at = (i * (2 * t + 1) + t) % programs.size();
        different[t] += Solve(programs[at]).cost != costs[at];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(different, std::vector<int>(3, 0));
}

}  // namespace
}  // namespace reprise::planner
