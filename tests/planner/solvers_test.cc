// SPDX-License-Identifier: Apache-2.0
//
// Our flows and trees against other solvers: GLPK for linear and mixed-integer
// programs, LEMON for flows. Built if these are installed (scripts/setup --tests); otherwise the
// tests are skipped with a message.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/generate/generate.h"
#include "planner/bounds/certify_tree.h"
#include "planner/bounds/lp.h"
#include "planner/bounds/max_flow.h"
#include "planner/bounds/screen.h"
#include "planner/bounds/window_bound.h"
#include "planner/model/random.h"
#include "planner/verify/program.h"
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
// Returns whether a row of a program is (rounded), in steps without a limit of
// runs: of (version) rows, the constant is 0 or -1.
bool IsRounded(const verify::Program& program, int32_t row) {
  const auto entries = program.Row(row);
  return !program.InBytes(row) && program.Least(row) < -1 &&
         std::all_of(entries.begin(), entries.end(),
                     [](const auto& entry) { return entry.value < 0; });
}

// A program in GLPK, without its (rounded) rows; the destructor frees it.
class Glpk {
 public:
  explicit Glpk(const verify::Program& program) : problem_(glp_create_prob()) {
    glp_term_out(GLP_OFF);
    glp_add_cols(problem_, program.column_count());
    for (int j = 0; j < program.column_count(); ++j) {
      glp_set_col_bnds(problem_, j + 1, GLP_DB, 0, 1);
      glp_set_obj_coef(problem_, j + 1, static_cast<double>(program.CostNs(j)));
      if (program.IsKept(j)) glp_set_col_kind(problem_, j + 1, GLP_IV);
    }
    for (int i = 0; i < program.row_count(); ++i) {
      if (IsRounded(program, i)) {
        ++rounded_;
        continue;
      }
      const int row = glp_add_rows(problem_, 1);
      glp_set_row_bnds(problem_, row, GLP_LO,
                       static_cast<double>(program.Least(i)), 0);
      // GLPK counts from 1, and a row may name each column only once.
      std::vector<int> columns = {0};
      std::vector<double> values = {0};
      for (const verify::Program::Entry& entry : program.Row(i)) {
        columns.push_back(entry.column + 1);
        values.push_back(static_cast<double>(entry.value));
      }
      glp_set_mat_row(problem_, row, static_cast<int>(columns.size()) - 1,
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
                                               : kLpInfinity;
  }
  double Whole() {
    if (std::isinf(Relaxed())) return kLpInfinity;
    EXPECT_EQ(glp_intopt(problem_, nullptr), 0);
    return glp_mip_status(problem_) == GLP_OPT ? glp_mip_obj_val(problem_)
                                               : kLpInfinity;
  }

  int rounded() const { return rounded_; }

 private:
  int rounded_ = 0;
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
  int above_zero = 0, rounded = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const StepGraph graph = Layered(seed);
    const Problem problem = MakeProblem(graph, {});
    for (const int percent : {90, 80, 70}) {
      const int64_t budget = BudgetOf(problem, percent);
      WindowBound cut(problem, problem.base.peak_op);
      const std::vector<OpId> windows = {problem.base.peak_op};
      const auto facts = verify::ReadFacts(graph, {});
      ASSERT_TRUE(facts.ok());
      const auto program =
          verify::Program::Build(*facts, budget, windows, false, {});
      ASSERT_TRUE(program.ok());

      const WindowResult bound = cut.Solve(budget);
      Glpk glpk(*program);
      const double lp = glpk.Relaxed();
      const Refutation ours =
          Refuter(problem, *facts, budget, windows)
              .Cheaper(verify::Program::kNothing, /*to_optimum=*/false,
                       {.root_only = true});

      if (bound.impossible) {
        EXPECT_TRUE(std::isinf(lp)) << seed << " at " << percent << " %";
        continue;
      }
      EXPECT_NEAR(static_cast<double>(bound.added_ns), lp, 1 + 1e-9 * lp)
          << seed << " at " << percent << " %";
      if (HasLpSolver()) {
        EXPECT_GE(static_cast<double>(ours.proven_ns()), lp * (1 - 1e-5) - 1);
      }
      above_zero += bound.added_ns > 0;
      rounded += glpk.rounded();
    }
  }
  EXPECT_GT(above_zero, 2);
  EXPECT_GT(rounded, 10);
}

// GLPK has no (rounded) rows: they take nothing away that is whole.
TEST(GlpkTest, ATreeFindsTheSameOptimaOfWindows) {
  if (!HasLpSolver()) GTEST_SKIP() << "built without Clp";
  Random random(72);
  int solved = 0, rounded = 0;
  for (int i = 0; i < 120; ++i) {
    const StepGraph graph = RandomGraph(random, 12);
    Capabilities capabilities = RandomCapabilities(random);
    capabilities.max_runs = 0;
    const Problem problem = MakeProblem(graph, capabilities);
    const int64_t least = LargestWorkingSet(problem).smallest_budget_bytes;
    const int64_t budget = least + random.Below(std::max<int64_t>(
                                       1, problem.base.peak_bytes - least));
    const OpId first = random.Below(problem.op_count - 1);
    const OpId second = first + 1 + random.Below(problem.op_count - 1 - first);
    const std::vector<OpId> windows = {first, second};
    const auto facts = verify::ReadFacts(graph, ExecutorOf(capabilities));
    ASSERT_TRUE(facts.ok());
    const auto program =
        verify::Program::Build(*facts, budget, windows, false, {});
    ASSERT_TRUE(program.ok());
    if (program->column_count() == 0) continue;
    SCOPED_TRACE("program " + std::to_string(i));

    const Refutation ours =
        Refuter(problem, *facts, budget, windows)
            .Cheaper(verify::Program::kNothing, /*to_optimum=*/true, {});
    Glpk glpk(*program);
    const double whole = glpk.Whole();

    ASSERT_TRUE(ours.is_proven());
    EXPECT_EQ(ours.added_ns == verify::Program::kNothing, std::isinf(whole));
    if (std::isinf(whole)) continue;
    EXPECT_NEAR(static_cast<double>(ours.added_ns), whole, 1e-6 * (1 + whole));
    ++solved;
    rounded += glpk.rounded();
  }
  EXPECT_GT(solved, 40);
  EXPECT_GT(rounded, 40);
}
#else
TEST(GlpkTest, TheMinimumCutOfAWindowIsItsLp) {
  GTEST_SKIP() << "built without GLPK: install libglpk-dev";
}
#endif

}  // namespace
}  // namespace reprise::planner
