// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "formats/convert/sentence.h"

namespace reprise::formats {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

v1::Plan GoodPlan() {
  v1::Plan plan;
  plan.set_feasible(true);
  plan.set_budget_bytes(8 * kGiB);
  plan.set_peak_bytes(79 * kGiB / 10);
  plan.set_base_peak_bytes(142 * kGiB / 10);
  plan.set_base_time_ns(370'000'000);
  plan.set_time_ns(412'000'000);
  plan.set_overhead(42.0 / 370);
  plan.set_bound(42.0 / 370);
  plan.set_proven_optimal(true);
  return plan;
}

TEST(Sentence, SaysWhatAPlanCosts) {
  EXPECT_EQ(PlanSentence(GoodPlan()),
            "It fits in 8.0 GiB.  Peak 7.9 GiB (was 14.2 GiB)   "
            "Step 412 ms (+11.4 %)   proven optimal");
}

TEST(Sentence, SaysHowFarFromOptimalAtMost) {
  v1::Plan plan = GoodPlan();
  plan.set_proven_optimal(false);
  plan.set_overhead(0.113);

  plan.set_bound(0.105);
  EXPECT_TRUE(PlanSentence(plan).ends_with("at most 0.8 % above optimal"));
  plan.set_bound(0.1049);  // 0.81 %: "at most" rounds up
  EXPECT_TRUE(PlanSentence(plan).ends_with("at most 0.9 % above optimal"));
  plan.set_bound(0.113);  // not proven, so not claimed
  EXPECT_TRUE(PlanSentence(plan).ends_with("at most 0.1 % above optimal"));
}

TEST(Sentence, WhatNobodyCheckedIsNotCalledProven) {
  v1::Plan plan = GoodPlan();
  plan.set_proven_optimal(false);
  plan.set_bound_proof(v1::BOUND_PROOF_SOLVER);
  EXPECT_TRUE(PlanSentence(plan).ends_with(
      "optimal by the solver's word, not checked"));
  plan.set_bound(plan.overhead() - 0.008);
  EXPECT_TRUE(PlanSentence(plan).ends_with(
      "at most 0.8 % above optimal by the solver's word, not checked"));
}

TEST(Sentence, TheStepOfAJobStartsFromItsMeasuredTime) {
  // 400 measured + (412 - 370) = 442, 10.5 % more than 400.
  EXPECT_NE(PlanSentence(GoodPlan(), 400'000'000).find("Step 442 ms (+10.5 %)"),
            std::string::npos);
}

TEST(Sentence, TheGapIsOfTheStepThatIsNamed) {
  v1::Plan plan = GoodPlan();
  plan.set_proven_optimal(false);
  plan.set_bound(plan.overhead() - 0.016);  // of 370 ms, 0.8 % of 740 ms

  EXPECT_TRUE(
      PlanSentence(plan, 740'000'000).ends_with("at most 0.8 % above optimal"));
}

TEST(Sentence, WhatIsNotRecomputedIsNotCalledOptimal) {
  v1::Plan plan = GoodPlan();
  plan.set_time_ns(plan.base_time_ns());
  plan.set_peak_bytes(plan.base_peak_bytes());
  plan.set_budget_bytes(16 * kGiB);
  EXPECT_EQ(PlanSentence(plan),
            "It fits in 16.0 GiB as it is: nothing is recomputed.  Peak 14.2 "
            "GiB   Step 370 ms (+0.0 %)");

  plan.add_recomputed_ops(3);  // of an op that takes no time

  EXPECT_NE(PlanSentence(plan).find("proven optimal"), std::string::npos);
}

v1::Plan NoPlan(int64_t budget, int64_t needed) {
  v1::Plan plan;
  plan.set_budget_bytes(budget);
  v1::Infeasible& why = *plan.mutable_infeasible();
  why.set_smallest_budget_bytes(needed);
  why.set_blocking_op(17);
  why.set_blocking_op_name("aten.bmm.default");
  why.set_blocking_module("layers.3.attn");
  return plan;
}

TEST(Sentence, NamesTheOpThatNeedsMore) {
  EXPECT_EQ(PlanSentence(NoPlan(3 * kGiB, 34 * kGiB / 10)),
            "Nothing fits in 3.0 GiB: op 17 aten.bmm.default (layers.3.attn) "
            "needs at least 3.4 GiB.");
}

TEST(Sentence, WhatIsNeededIsRoundedUpSoThatItCanBeTyped) {
  // 3.31 GiB would print as 3.3, which would be refused again.
  EXPECT_EQ(PlanSentence(NoPlan(3 * kGiB, 331 * kGiB / 100)),
            "Nothing fits in 3.0 GiB: op 17 aten.bmm.default (layers.3.attn) "
            "needs at least 3.4 GiB.");
  EXPECT_EQ(FormatBytesUp(1023), "1023 B");
  EXPECT_EQ(FormatBytesUp(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytesUp(1025), "1.1 KiB");
  EXPECT_EQ(FormatBytesUp(3 * kGiB), "3.0 GiB");
  EXPECT_EQ(FormatBytesUp(kGiB - 1), "1.0 GiB");
}

TEST(Sentence, FiguresThatLookAlikeArePrintedInBytes) {
  EXPECT_EQ(PlanSentence(NoPlan(1000, 1001)),
            "Nothing fits in 1000 B: op 17 aten.bmm.default (layers.3.attn) "
            "needs at least 1001 B.");
  EXPECT_EQ(PlanSentence(NoPlan(3435973830, 3435973836)),
            "Nothing fits in 3435973830 bytes: op 17 aten.bmm.default "
            "(layers.3.attn) needs at least 3435973836 bytes.");
}

TEST(Sentence, AnOpenEndIsNotCalledAProof) {
  v1::Plan plan = NoPlan(3 * kGiB, 28 * kGiB / 10);
  plan.mutable_infeasible()->set_smallest_known_bytes(32 * kGiB / 10);

  EXPECT_TRUE(Undecided(plan));
  EXPECT_EQ(PlanSentence(plan),
            "No plan found for 3.0 GiB yet: at least 2.8 GiB are needed, a "
            "plan is known for 3.2 GiB.");
}

// Tests of a run's sentence: tests/server/verdict_test.cc.

}  // namespace
}  // namespace reprise::formats
