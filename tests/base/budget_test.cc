// SPDX-License-Identifier: Apache-2.0
#include "base/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reprise {
namespace {

using ::testing::HasSubstr;

int64_t Bytes(const char* text, const BudgetContext& context = {}) {
  const StatusOr<Budget> budget = ParseBudget(text);
  EXPECT_TRUE(budget.ok()) << budget.status().message();
  if (!budget.ok()) return -1;
  const StatusOr<int64_t> bytes = ResolveBudget(*budget, context);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  return bytes.ok() ? *bytes : -1;
}

std::string Error(std::string_view text) {
  const StatusOr<Budget> budget = ParseBudget(text);
  EXPECT_EQ(budget.status().code(), Code::kInvalidArgument) << text;
  return budget.status().message();
}

TEST(BudgetTest, BytesAreWrittenBinaryDecimalOrBare) {
  EXPECT_EQ(Bytes("8GiB"), int64_t{8} << 30);
  EXPECT_EQ(Bytes("8GB"), 8'000'000'000);
  EXPECT_EQ(Bytes("8589934592"), int64_t{8} << 30);
  EXPECT_EQ(Bytes(" 1.5 KiB "), 1536);
  EXPECT_EQ(Bytes("2TiB"), int64_t{2} << 40);
  EXPECT_EQ(Bytes("7kB"), 7000);
  EXPECT_EQ(Bytes("7B"), 7);
}

TEST(BudgetTest, AFractionIsStaticMemoryPlusAShareOfTheDynamicPeak) {
  // 10 + floor(0.5 * (35 - 10)) = 10 + 12
  const BudgetContext context{.static_bytes = 10, .base_peak_bytes = 35};

  EXPECT_EQ(Bytes("0.5x", context), 22);
  EXPECT_EQ(Bytes("1x", context), 35);
  EXPECT_EQ(Bytes("2.0x", context), 60);
}

TEST(BudgetTest, APercentageIsAShareOfTheDevice) {
  EXPECT_EQ(Bytes("90%", {.device_bytes = 1000}), 900);
  EXPECT_EQ(Bytes("fit", {.device_bytes = 1000, .device_free_bytes = 77}), 77);
}

TEST(BudgetTest, ABarePrefixIsRefusedWithBothReadings) {
  EXPECT_THAT(Error("8G"), HasSubstr("write 8GiB (binary) or 8GB (decimal)"));
  EXPECT_THAT(Error("8k"), HasSubstr("write 8KiB (binary) or 8kB (decimal)"));
}

TEST(BudgetTest, APercentageWithoutADeviceHintsAtX) {
  const StatusOr<Budget> share = ParseBudget("90%");
  const StatusOr<Budget> fit = ParseBudget("fit");

  EXPECT_THAT(ResolveBudget(*share, {}).status().message(), HasSubstr("0.5x"));
  EXPECT_THAT(ResolveBudget(*fit, {}).status().message(), HasSubstr("0.5x"));
}

TEST(BudgetTest, WhatCannotBeReadIsRefusedWithTheTextAndARemedy) {
  for (const char* text : {"",
                           "  ",
                           "x",
                           "GiB",
                           "8 giraffes",
                           "8gib",
                           "-8GiB",
                           "0",
                           "0x",
                           "1.5",
                           "1..5GiB",
                           "0%",
                           "101%",
                           "nan",
                           "inf",
                           "1e9",
                           "99999999999999999999",
                           "9000000TiB",
                           "9000000.5TiB",
                           "0.1B",
                           "1e400x",
                           "8GiBB"}) {
    EXPECT_THAT(Error(text), HasSubstr("budget \"")) << text;
  }
}

TEST(BudgetTest, AUnitInOtherLettersIsNamed) {
  EXPECT_THAT(Error("8gib"), HasSubstr("is not known; did you mean 8GiB?"));
  EXPECT_THAT(Error("8Gb"), HasSubstr("did you mean 8GB?"));
  EXPECT_THAT(Error("1.5 KB"), HasSubstr("did you mean 1.5kB?"));
  EXPECT_THAT(Error("0.5X"), HasSubstr("did you mean 0.5x?"));
  EXPECT_THAT(Error("8Gbit"), HasSubstr("write 8GiB"));
  EXPECT_THAT(Error("Fit"), HasSubstr("did you mean fit?"));
}

TEST(BudgetTest, AHostileTextIsQuotedShortAndPrintable) {
  const std::string message = Error(std::string(5000, '\x01') + "8GiB");

  EXPECT_LT(message.size(), 200u);
  EXPECT_EQ(message.find('\x01'), std::string::npos);
}

TEST(BudgetTest, AFractionOfAnAbsurdPeakDoesNotOverflow) {
  const StatusOr<Budget> budget = ParseBudget("1000x");
  const BudgetContext context{.static_bytes = 0,
                              .base_peak_bytes = int64_t{1} << 61};

  EXPECT_FALSE(ResolveBudget(*budget, context).ok());
}

}  // namespace
}  // namespace reprise
