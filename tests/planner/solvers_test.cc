// SPDX-License-Identifier: Apache-2.0
//
// Our solvers and CBC against other solvers: GLPK for LPs and MIPs, LEMON for
// flows. Built if these are installed (scripts/setup --tests); otherwise the
// tests are skipped with a message.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "bench/generate/generate.h"
#include "planner/bounds/many_windows.h"
#include "planner/bounds/max_flow.h"
#include "planner/bounds/mip.h"
#include "planner/bounds/screen.h"
#include "planner/bounds/window_bound.h"
#include "planner/model/random.h"
#include "tests/planner/random_graph.h"
#ifdef REPRISE_GLPK
#include <glpk.h>
#endif
#ifdef REPRISE_LEMON
#include "tests/planner/lemon_oracle.h"
#endif

namespace reprise::planner {
namespace {

#ifdef REPRISE_LEMON
TEST(LemonTest, FlowsOfRandomNetworksAreEqual) {
  Random random(71);
  for (int i = 0; i < 200; ++i) {
    const int nodes = 2 + random.Below(80);
    std::vector<LemonArc> arcs;
    MaxFlow flow(nodes);
    for (int a = random.Below(6 * nodes); a > 0; --a) {
      // Up to 2^40, and often 0.
      const int64_t capacity =
          random.Percent(10) ? 0 : random.Next() >> (24 + random.Below(40));
      const LemonArc arc{random.Below(nodes), random.Below(nodes), capacity};
      if (arc.from == arc.to) continue;
      arcs.push_back(arc);
      flow.AddArc(arc.from, arc.to, arc.capacity);
    }
    flow.Build();

    EXPECT_EQ(flow.Solve(0, 1), LemonMaxFlow(nodes, arcs)) << "network " << i;
  }
}
#else
TEST(LemonTest, FlowsOfRandomNetworksAreEqual) {
  GTEST_SKIP() << "built without LEMON: install liblemon-dev";
}
#endif

#ifdef REPRISE_GLPK
// A program in GLPK; the destructor frees it.
class Glpk {
 public:
  explicit Glpk(const MipProgram& program) : problem_(glp_create_prob()) {
    glp_term_out(GLP_OFF);
    glp_add_cols(problem_, program.column_count());
    for (int j = 0; j < program.column_count(); ++j) {
      SetBounds(glp_set_col_bnds, j, program.lower[j], program.upper[j]);
      glp_set_obj_coef(problem_, j + 1, program.cost[j]);
      if (program.integer[j] != 0) glp_set_col_kind(problem_, j + 1, GLP_IV);
    }
    glp_add_rows(problem_, program.row_count());
    for (int i = 0; i < program.row_count(); ++i) {
      SetBounds(glp_set_row_bnds, i, program.row_lower[i],
                program.row_upper[i]);
      // GLPK counts from 1, and a row may name each column only once.
      std::vector<int> columns = {0};
      std::vector<double> values = {0};
      for (int e = program.row_begin[i]; e < program.row_begin[i + 1]; ++e) {
        columns.push_back(program.column[e] + 1);
        values.push_back(program.value[e]);
      }
      glp_set_mat_row(problem_, i + 1, static_cast<int>(columns.size()) - 1,
                      columns.data(), values.data());
    }
  }
  ~Glpk() { glp_delete_prob(problem_); }
  Glpk(const Glpk&) = delete;
  Glpk& operator=(const Glpk&) = delete;

  // Returns the LP optimum, or infinity if nothing obeys the rows.
  double Relaxed() {
    EXPECT_EQ(glp_simplex(problem_, nullptr), 0);
    return glp_get_status(problem_) == GLP_OPT ? glp_get_obj_val(problem_)
                                               : kMipInfinity;
  }
  double Whole() {
    if (std::isinf(Relaxed())) return kMipInfinity;
    EXPECT_EQ(glp_intopt(problem_, nullptr), 0);
    return glp_mip_status(problem_) == GLP_OPT ? glp_mip_obj_val(problem_)
                                               : kMipInfinity;
  }

 private:
  template <typename Set>
  void SetBounds(Set set, int i, double lower, double upper) {
    const bool from = lower > -kMipInfinity, to = upper < kMipInfinity;
    const int kind = !from && !to     ? GLP_FR
                     : !to            ? GLP_LO
                     : !from          ? GLP_UP
                     : lower == upper ? GLP_FX
                                      : GLP_DB;
    set(problem_, i + 1, kind, lower, upper);
  }
  glp_prob* problem_;
};

// A layered step of 100 ops or more, all pure and without in-place writes, for
// which window_bound.h and the program describe the same problem.
StepGraph Layered(uint64_t seed) {
  const auto graph =
      Generate({.kind = GraphKind::kLayered, .ops = 120, .seed = seed});
  EXPECT_TRUE(graph.ok());
  return *graph;
}

int64_t BudgetOf(const Problem& problem, int percent) {
  return problem.static_bytes +
         (problem.base.peak_bytes - problem.static_bytes) * percent / 100;
}

TEST(GlpkTest, TheMinimumCutOfAWindowIsItsLp) {
  int above_zero = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const StepGraph graph = Layered(seed);
    const Problem problem = MakeProblem(graph, {});
    for (const int percent : {90, 80, 70}) {
      const int64_t budget = BudgetOf(problem, percent);
      WindowBound cut(problem, problem.base.peak_op);
      ManyWindows window(problem, {problem.base.peak_op}, budget);

      const WindowResult bound = cut.Solve(budget);
      const ManyWindowsResult ours = window.Solve({.relaxed = true});
      const double lp = Glpk(window.program()).Relaxed();

      if (bound.impossible) {
        EXPECT_TRUE(std::isinf(lp)) << seed << " at " << percent << " %";
        continue;
      }
      // The program's cost is scaled by a power of two, and so is its optimum.
      const double scale = window.CostScale();
      EXPECT_NEAR(static_cast<double>(bound.added_ns), lp / scale,
                  1 + 1e-9 * lp / scale)
          << seed << " at " << percent << " %";
      if (MipAvailable()) {
        EXPECT_NEAR(static_cast<double>(ours.added_ns), lp / scale,
                    1 + 1e-5 * lp / scale);
      }
      above_zero += bound.added_ns > 0;
    }
  }
  EXPECT_GT(above_zero, 2);
}

TEST(GlpkTest, CbcFindsTheSameOptimaOfWindows) {
  if (!MipAvailable()) GTEST_SKIP() << "built without CBC";
  Random random(72);
  int solved = 0;
  for (int i = 0; i < 60; ++i) {
    const StepGraph graph = RandomGraph(random, 12);
    const Problem problem = MakeProblem(graph, RandomCapabilities(random));
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t budget = least + random.Below(std::max<int64_t>(
                                       1, problem.base.peak_bytes - least));
    const OpId first = random.Below(problem.op_count - 1);
    const OpId second = first + 1 + random.Below(problem.op_count - 1 - first);
    ManyWindows windows(problem, {first, second}, budget);
    if (windows.program().column_count() == 0) continue;

    const MipAnswer cbc = SolveMip(windows.program(), {});
    const double glpk = Glpk(windows.program()).Whole();

    ASSERT_TRUE(cbc.finished()) << "program " << i;
    EXPECT_EQ(cbc.infeasible(), std::isinf(glpk)) << "program " << i;
    if (cbc.infeasible() || std::isinf(glpk)) continue;
    EXPECT_NEAR(cbc.cost, glpk, 1e-6 * (1 + std::abs(glpk))) << "program " << i;
    ++solved;
  }
  EXPECT_GT(solved, 20);
}
#else
TEST(GlpkTest, TheMinimumCutOfAWindowIsItsLp) {
  GTEST_SKIP() << "built without GLPK: install libglpk-dev";
}
#endif

}  // namespace
}  // namespace reprise::planner
