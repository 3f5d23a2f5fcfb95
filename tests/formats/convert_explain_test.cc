// SPDX-License-Identifier: Apache-2.0
//
// tests/web/reasons.test.ts asks the same of the page.
#include <gtest/gtest.h>

#include "formats/convert/explain_proto.h"

namespace reprise::formats {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1 << 30;

std::string Priced(double price, int64_t peak_bytes, int64_t static_bytes,
                   int64_t added_ns) {
  v1::Explanation explanation;
  v1::Plan& plan = *explanation.mutable_plan();
  plan.set_feasible(true);
  plan.set_peak_bytes(peak_bytes);
  plan.set_base_time_ns(1000);
  plan.set_time_ns(1000 + added_ns);
  explanation.set_price_ns_per_byte(price);
  explanation.mutable_working_set()->set_static_bytes(static_bytes);
  return PriceText(explanation);
}

TEST(PriceTextTest, IsATimePerUnitThatIsSmallBesideTheStep) {
  EXPECT_EQ(Priced(1e6 / kGiB, 10 * kGiB, 0, 1'000'000'000),
            "one more GiB saves 1 ms");
  EXPECT_EQ(Priced(1e6 / kMiB, 10 * kGiB, 1, 1'000'000'000),
            "one more MiB saves 1 ms");
  EXPECT_EQ(Priced(36e6 / kMiB, 159 * kMiB, 43 * kMiB, 1'310'000'000),
            "one more MiB saves 36 ms");
  EXPECT_EQ(Priced(1e6 / kKiB, 10 * kMiB - 1, 0, 1'000'000'000),
            "one more KiB saves 1 ms");
  EXPECT_EQ(Priced(5, 10 * kKiB - 1, 0, 1'000'000'000),
            "one more byte saves 5 ns");
  EXPECT_EQ(Priced(5, 0, 0, 1'000'000'000), "one more byte saves 5 ns");
}

TEST(PriceTextTest, NoMoreIsSavedThanIsRecomputed) {
  EXPECT_EQ(Priced(36e6 / kMiB, 159 * kMiB, 0, 20'000'000),
            "one more MiB saves 20 ms");
  EXPECT_EQ(Priced(36e6 / kMiB, 159 * kMiB, 0, 0), "");
  EXPECT_EQ(Priced(0, 159 * kMiB, 0, 20'000'000), "");
}

}  // namespace
}  // namespace reprise::formats
