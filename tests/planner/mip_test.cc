// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/mip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "planner/model/random.h"

namespace reprise::planner {
namespace {

// Up to 12 binary columns, costs of both signs, up to 4 rows.
MipProgram RandomProgram(Random& random) {
  MipProgram program;
  const int columns = 3 + random.Below(10);
  for (int j = 0; j < columns; ++j) {
    program.AddColumn(random.Below(21) - 8, 0, 1, /*whole=*/true);
  }
  for (int i = 1 + random.Below(4); i > 0; --i) {
    for (int j = 0; j < columns; ++j) {
      if (random.Percent(60)) program.AddEntry(j, random.Below(13) - 3);
    }
    if (random.Percent(50)) {
      program.CloseRow(-kMipInfinity, random.Below(12));
    } else {
      program.CloseRow(random.Below(12), kMipInfinity);
    }
  }
  return program;
}

// Returns the least cost of all 2^n choices, or infinity if none obeys the
// rows.
double BruteForce(const MipProgram& program) {
  double best = kMipInfinity;
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

TEST(MipTest, AgreesWithBruteForce) {
  if (!MipAvailable()) GTEST_SKIP() << "built without CBC";
  Random random(51);
  int infeasible = 0;
  for (int i = 0; i < 150; ++i) {
    const MipProgram program = RandomProgram(random);
    const double optimum = BruteForce(program);
    SCOPED_TRACE("program " + std::to_string(i));

    const MipAnswer whole = SolveMip(program, {});
    const MipAnswer relaxed = SolveLp(program, {});

    ASSERT_FALSE(relaxed.stopped());
    EXPECT_TRUE(whole.finished());
    if (std::isinf(optimum)) {
      ++infeasible;
      EXPECT_TRUE(whole.infeasible());
      continue;
    }
    ASSERT_FALSE(whole.infeasible());
    ASSERT_FALSE(relaxed.infeasible());
    EXPECT_NEAR(whole.bound, optimum, 1e-4);
    EXPECT_LE(relaxed.bound, optimum + 1e-6);
    ASSERT_TRUE(whole.has_solution);
    EXPECT_NEAR(whole.cost, optimum, 1e-4);

    // Given a solution of the same cost, it finds nothing cheaper and never
    // reports infeasibility; given a worse one, it finds the optimum.
    const MipAnswer same = SolveMip(program, {.cutoff = optimum});
    EXPECT_FALSE(same.infeasible());
    EXPECT_LE(same.bound, optimum + 1e-6);
    EXPECT_GE(same.bound, optimum - 1e-4);
    const MipAnswer worse = SolveMip(program, {.cutoff = optimum + 2});
    EXPECT_NEAR(worse.bound, optimum, 1e-4);
  }
  EXPECT_GT(infeasible, 5);
}

// Rows of both signs over more columns than the root node can settle.
MipProgram LargerProgram(Random& random) {
  MipProgram program;
  for (int j = 0; j < 14; ++j) {
    program.AddColumn(1 + random.Below(40), 0, 1, /*whole=*/true);
  }
  for (int i = 0; i < 10; ++i) {
    for (int j = 0; j < 14; ++j) {
      if (random.Percent(50)) program.AddEntry(j, 1 + random.Below(30));
    }
    program.CloseRow(20 + random.Below(30), kMipInfinity);
  }
  return program;
}

TEST(MipTest, AnInterruptedSolveProvesNothingThatIsNotTrue) {
  if (!MipAvailable()) GTEST_SKIP() << "built without CBC";
  Random random(53);
  int stopped = 0;
  for (int i = 0; i < 6; ++i) {
    const MipProgram program = LargerProgram(random);
    const double optimum = BruteForce(program);
    for (const double cutoff : {kMipInfinity, 2 * optimum}) {
      for (int k = 0;; ++k) {
        SCOPED_TRACE("program " + std::to_string(i) + " stopped at " +
                     std::to_string(k));
        int asked = 0;
        const auto should_stop = [&] { return asked++ >= k; };
        const MipAnswer whole =
            SolveMip(program, {.cutoff = cutoff, .should_stop = should_stop});
        const bool over = asked <= k;
        if (std::isfinite(optimum)) {
          EXPECT_FALSE(whole.infeasible());
          EXPECT_LE(whole.bound, optimum + 1e-4);
        }
        EXPECT_EQ(whole.stopped(), !over);
        stopped += whole.stopped();
        asked = 0;
        const MipAnswer relaxed = SolveLp(program, should_stop);
        if (std::isfinite(optimum)) {
          EXPECT_FALSE(relaxed.infeasible());
          EXPECT_LE(relaxed.bound, optimum + 1e-4);
        }
        if (over || testing::Test::HasFailure()) break;
      }
    }
  }
  EXPECT_GT(stopped, 50);
}

TEST(MipTest, AProgramWithoutColumnsIsDecidedByItsRows) {
  if (!MipAvailable()) GTEST_SKIP() << "built without CBC";
  MipProgram program;
  program.CloseRow(-kMipInfinity, 3);
  EXPECT_FALSE(SolveMip(program, {}).infeasible());
  program.CloseRow(1, kMipInfinity);
  EXPECT_TRUE(SolveMip(program, {}).infeasible());
}

TEST(MipTest, SolvesOnSeveralThreadsAgree) {
  if (!MipAvailable()) GTEST_SKIP() << "built without CBC";
  Random random(52);
  std::vector<MipProgram> programs;
  std::vector<double> bounds, relaxed;
  for (int i = 0; i < 40; ++i) {
    programs.push_back(RandomProgram(random));
    bounds.push_back(SolveMip(programs.back(), {}).bound);
    relaxed.push_back(SolveLp(programs.back(), {}).bound);
  }
  std::vector<int> different(3, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < different.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < programs.size(); ++i) {
        const size_t at = (i * (2 * t + 1) + t) % programs.size();
        different[t] += SolveMip(programs[at], {}).bound != bounds[at];
        different[t] += SolveLp(programs[at], {}).bound != relaxed[at];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(different, std::vector<int>(3, 0));
}

}  // namespace
}  // namespace reprise::planner
