// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"

namespace reprise {
namespace {

TEST(UnitsTest, BytesPrintAsInTheTableSharedWithPythonAndTypeScript) {
  std::ifstream file(REPRISE_SOURCE_DIR "/tests/fixtures/units.json");
  const auto table = nlohmann::json::parse(file);

  ASSERT_GT(table.size(), 10u);
  for (const auto& row : table) {
    EXPECT_EQ(FormatBytes(row[0].get<int64_t>()), row[1].get<std::string>());
  }
}

TEST(UnitsTest, TheLargestAndTheSmallestNumberOfBytesPrint) {
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::min()), "-8.0 EiB");
}

TEST(UnitsTest, DurationsHaveThreeDigitsAndNoTrailingZeros) {
  EXPECT_EQ(FormatDuration(0), "0 ns");
  EXPECT_EQ(FormatDuration(999), "999 ns");
  EXPECT_EQ(FormatDuration(1'500), "1.5 us");
  EXPECT_EQ(FormatDuration(41'260), "41.3 us");
  EXPECT_EQ(FormatDuration(412'000'000), "412 ms");
  EXPECT_EQ(FormatDuration(1'234'567'890), "1.23 s");
  EXPECT_EQ(FormatDuration(2'005'000'000), "2.01 s");
  EXPECT_EQ(FormatDuration(3'600'000'000'000), "3600 s");
  EXPECT_EQ(FormatDuration(-1'500), "-1.5 us");
}

TEST(UnitsTest, ADurationThatRoundsUpMovesToTheNextUnit) {
  EXPECT_EQ(FormatDuration(999'499), "999 us");
  EXPECT_EQ(FormatDuration(999'500), "1 ms");
  EXPECT_EQ(FormatDuration(999'499'999), "999 ms");
  EXPECT_EQ(FormatDuration(999'500'000), "1 s");
}

TEST(UnitsTest, PercentagesHaveOneDecimalAndASignOnRequest) {
  EXPECT_EQ(FormatPercent(0.0937), "9.4 %");
  EXPECT_EQ(FormatPercent(0.0937, /*sign=*/true), "+9.4 %");
  EXPECT_EQ(FormatPercent(-0.009, /*sign=*/true), "-0.9 %");
  EXPECT_EQ(FormatPercent(0, /*sign=*/true), "+0.0 %");
  EXPECT_EQ(FormatPercent(-0.0001), "0.0 %");
  EXPECT_EQ(FormatPercent(std::numeric_limits<double>::quiet_NaN()), "? %");
}

}  // namespace
}  // namespace reprise
