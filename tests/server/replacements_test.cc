// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "server/service/planning/planning.h"

namespace reprise::server {
namespace {

TEST(Replacements, MakeAPlanOnceForTwoThatAskAtTheSameTime) {
  Replacements replacements;
  std::atomic<int> made = 0;
  const auto ask = [&](std::string& answer) {
    answer = replacements
                 .Once("run", "old", 100,
                       [&]() -> StatusOr<std::string> {
                         return "new " + std::to_string(++made);
                       })
                 .plan_id;
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
  const auto make = [&]() -> StatusOr<std::string> {
    return std::to_string(++made);
  };

  replacements.Once("run", "old", 100, make);
  replacements.Once("another run", "old", 100, make);

  EXPECT_EQ(made, 2);
}

TEST(Replacements, RepeatARefusalUnlessLessIsAskedFor) {
  Replacements replacements;
  int asked = 0;
  const auto refuse = [&]() -> StatusOr<std::string> {
    ++asked;
    return FailedPrecondition("nothing needs less");
  };
  replacements.Once("run", "old", 100, refuse);

  const auto again = replacements.Once("run", "old", 200, refuse);

  EXPECT_EQ(asked, 1);
  EXPECT_EQ(again.status.message(), "nothing needs less");
  replacements.Once("run", "old", 50, refuse);
  EXPECT_EQ(asked, 2) << "50 bytes less may be found where 100 were not";
}

TEST(Replacements, AreMadeAnewAfterACallThatWasCancelled) {
  Replacements replacements;
  replacements.Once("run", "old", 100, []() -> StatusOr<std::string> {
    return Cancelled("the client left");
  });

  const auto found = replacements.Once(
      "run", "old", 100,
      []() -> StatusOr<std::string> { return std::string("new"); });

  EXPECT_TRUE(found.status.ok());
  EXPECT_EQ(found.plan_id, "new");
}

}  // namespace
}  // namespace reprise::server
