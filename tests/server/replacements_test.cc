// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "server/service/planning/planning.h"

namespace reprise::server {
namespace {

StatusOr<v1::Plan> Feasible(const std::string& plan_id) {
  v1::Plan plan;
  plan.set_plan_id(plan_id);
  plan.set_feasible(true);
  return plan;
}

StatusOr<v1::Plan> Infeasible() {
  v1::Plan plan;
  plan.set_sentence("Nothing fits.");
  return plan;
}

TEST(Replacements, MakeAPlanOnceForTwoThatAskAtTheSameTime) {
  Replacements replacements;
  std::atomic<int> made = 0;
  const auto ask = [&](std::string& answer) {
    answer =
        replacements
            .Once("run", "old", 100,
                  [&] { return Feasible("new " + std::to_string(++made)); })
            .plan.plan_id();
  };
  std::string first;
  std::string second;

  std::thread other([&] { ask(second); });
  ask(first);
  other.join();

  EXPECT_EQ(made, 1);
  EXPECT_EQ(first, "new 1");
  EXPECT_EQ(second, "new 1");
}

TEST(Replacements, OfAnotherRunAreAnother) {
  Replacements replacements;
  int made = 0;
  const auto make = [&] { return Feasible(std::to_string(++made)); };

  replacements.Once("run", "old", 100, make);
  replacements.Once("another run", "old", 100, make);

  EXPECT_EQ(made, 2);
}

TEST(Replacements, RepeatARefusalUnlessLessIsAskedFor) {
  const StatusOr<v1::Plan> refusals[] = {
      FailedPrecondition("replaced often enough"), Infeasible()};
  for (const StatusOr<v1::Plan>& refusal : refusals) {
    Replacements replacements;
    int asked = 0;
    const auto refuse = [&] {
      ++asked;
      return refusal;
    };
    replacements.Once("run", "old", 100, refuse);

    const auto again = replacements.Once("run", "old", 200, refuse);

    EXPECT_EQ(asked, 1);
    EXPECT_EQ(again.status.message(), refusal.status().message());
    EXPECT_EQ(again.plan.sentence(), refusal.ok() ? refusal->sentence() : "");
    replacements.Once("run", "old", 50, refuse);
    EXPECT_EQ(asked, 2) << "50 bytes less may be found where 100 were not";
  }
}

TEST(Replacements, AreMadeAnewAfterACallThatWasCancelled) {
  Replacements replacements;
  replacements.Once("run", "old", 100, []() -> StatusOr<v1::Plan> {
    return Cancelled("the client left");
  });

  const auto found =
      replacements.Once("run", "old", 100, [] { return Feasible("new"); });

  EXPECT_TRUE(found.status.ok());
  EXPECT_EQ(found.plan.plan_id(), "new");
}

}  // namespace
}  // namespace reprise::server
