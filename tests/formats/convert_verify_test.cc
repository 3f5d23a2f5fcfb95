// SPDX-License-Identifier: Apache-2.0
//
// Tests of the verifier's results for plan files, intact and with one change.
#include <gtest/gtest.h>

#include <functional>

#include "formats/convert/capabilities.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/plan_json.h"
#include "formats/convert/plan_proto.h"
#include "formats/convert/verify_proto.h"
#include "tests/cli/small_graph.h"

namespace reprise::formats {
namespace {

// SmallGraph, but b2 does not read storage 0, so it can be recomputed before
// b1; that costs 10 ns and saves 24 bytes.
v1::StepGraph Graph() {
  v1::StepGraph graph = SmallGraph();
  graph.mutable_ops(3)->clear_reads();
  graph.mutable_ops(3)->add_reads(1);
  graph.mutable_ops(3)->add_reads(2);
  return graph;
}

// Makes a plan, writes it to the file format and reads it back.
v1::Plan PlanFor(const std::string& budget) {
  auto task =
      MakeTask(Graph(), "00000000000000ab", budget, *ParseCapabilities("free"));
  EXPECT_TRUE(task.ok()) << task.status().message();
  const auto plan = planner::MakePlan(task->graph, task->request);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  const auto read =
      ReadPlanText(WritePlanText(ToProto(*task, *plan, 1), "g.json"));
  EXPECT_TRUE(read.ok()) << read.status().message();
  return read->plan;
}

v1::Verification Verify(const v1::Plan& plan) {
  return VerifyPlan(*ToPlanner(Graph()), plan, {});
}

TEST(Verify, APlanIsFoundOptimalAndARefusalTrue) {
  const v1::Plan plan = PlanFor("1310");
  const v1::Verification found = Verify(plan);

  EXPECT_EQ(plan.bound_proof(), v1::BOUND_PROOF_CHECKED);
  EXPECT_TRUE(plan.proven_optimal());
  EXPECT_TRUE(found.holds()) << found.wrong();
  EXPECT_TRUE(found.proven_optimal());
  EXPECT_EQ(found.proven_ns(), 10);
  EXPECT_EQ(found.peak_bytes(), plan.peak_bytes());
  EXPECT_TRUE(found.sentence().ends_with("Proven: none is faster."));

  const v1::Plan refusal = PlanFor("1290");
  const v1::Verification refused = Verify(refusal);
  EXPECT_EQ(refusal.bound_proof(), v1::BOUND_PROOF_CHECKED);
  EXPECT_TRUE(refused.holds()) << refused.wrong();
  EXPECT_EQ(refused.bound_proof(), v1::BOUND_PROOF_CHECKED);
  EXPECT_GT(refused.proven_least_bytes(), 1290);
}

TEST(Verify, WithoutItsCertificateABoundIsTheSolversWord) {
  v1::Plan plan = PlanFor("1310");
  plan.clear_certificate();
  plan.set_bound_proof(v1::BOUND_PROOF_SOLVER);
  plan.set_proven_optimal(false);

  const v1::Verification found = Verify(plan);

  EXPECT_TRUE(found.holds()) << found.wrong();
  EXPECT_EQ(found.bound_proof(), v1::BOUND_PROOF_SOLVER);
  EXPECT_NE(found.sentence().find("solver's word"), std::string::npos);
}

// What such windows prove is tested in tests/planner; these, with a price at the
// first one, prove nothing.
TEST(Verify, ACertificateOfNestedWindowsIsWrittenReadAndChecked) {
  v1::Plan plan = PlanFor("1310");
  v1::Certificate& proof = *plan.mutable_certificate();
  proof.Clear();
  proof.set_method(v1::PROOF_METHOD_NESTED);
  proof.set_budget_bytes(1310);
  proof.add_at(2);
  proof.add_at(3);
  v1::ProofNode& leaf = *proof.add_tree();
  leaf.set_shift(20);
  leaf.add_rows(0);
  leaf.add_multipliers((10 << 20) / 24);
  plan.set_proven_optimal(false);
  plan.set_bound(0);

  const auto read = ReadPlanText(WritePlanText(plan, "g.json"));

  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->plan.certificate().SerializeAsString(),
            proof.SerializeAsString());
  const v1::Verification found = Verify(read->plan);
  EXPECT_TRUE(found.holds()) << found.wrong();
  EXPECT_EQ(found.bound_proof(), v1::BOUND_PROOF_CHECKED);

  proof.set_added_ns(1);
  EXPECT_EQ(Verify(plan).wrong(),
            "the certificate is rejected: a leaf proves 0 ns, not the 1 ns "
            "claimed");
}

TEST(Verify, RejectsAPlanInWhichOneThingWasChanged) {
  const v1::Plan good = PlanFor("1310");
  ASSERT_GT(good.certificate().tree_size(), 0);
  const std::pair<const char*, std::function<void(v1::Plan&)>> changes[] = {
      {"an exec", [](v1::Plan& p) { p.set_schedule(2, 3); }},
      {"half of the schedule",
       [](v1::Plan& p) {
         p.mutable_schedule()->Truncate(p.schedule_size() / 2);
       }},
      {"the peak", [](v1::Plan& p) { p.set_peak_bytes(p.peak_bytes() - 1); }},
      {"the time", [](v1::Plan& p) { p.set_time_ns(p.time_ns() - 1); }},
      {"the bound", [](v1::Plan& p) { p.set_bound(p.bound() * 1.01); }},
      {"the claim",
       [](v1::Plan& p) {
         p.mutable_certificate()->set_added_ns(p.certificate().added_ns() + 1);
       }},
      {"a leaf",
       [](v1::Plan& p) {
         p.mutable_certificate()->mutable_tree()->RemoveLast();
       }},
      {"the op", [](v1::Plan& p) { p.mutable_certificate()->set_at(0, 0); }},
      {"the budget of the certificate",
       [](v1::Plan& p) { p.mutable_certificate()->set_budget_bytes(1309); }},
  };
  for (const auto& [what, change] : changes) {
    v1::Plan plan = good;
    change(plan);
    const v1::Verification found = Verify(plan);
    EXPECT_FALSE(found.holds()) << what;
    EXPECT_FALSE(found.wrong().empty()) << what;
  }
}

}  // namespace
}  // namespace reprise::formats
