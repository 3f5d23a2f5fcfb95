// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"

namespace reprise {
namespace {

TEST(ValidUtf8Test, KeepsWhatIsValidAndReplacesWhatIsNot) {
  EXPECT_EQ(ValidUtf8("größe € 𝄞", 100), "größe € 𝄞");
  EXPECT_EQ(ValidUtf8("a\xff"
                      "b",
                      100),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(ValidUtf8(std::string_view("a\0b", 3), 100),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(ValidUtf8("\xc0\x80", 100).size(), 6u) << "overlong";
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80", 100).size(), 9u) << "surrogate";
  EXPECT_EQ(ValidUtf8("\xe2\x82", 100).size(), 6u) << "cut short";
}

TEST(ValidUtf8Test, NeverCutsACharacterInTwo) {
  EXPECT_EQ(ValidUtf8("ab€", 4), "ab");
  EXPECT_EQ(ValidUtf8("ab€", 5), "ab€");
}

TEST(ShownTest, ShowsTextsOfOthersAsTheFixtureSays) {
  std::ifstream file(REPRISE_SOURCE_DIR "/tests/fixtures/shown.json");
  const auto rows = nlohmann::json::parse(file)["rows"];
  ASSERT_GT(rows.size(), 5u);
  for (const auto& row : rows) {
    EXPECT_EQ(Shown(row["text"].get<std::string>()), row["shown"]);
  }
}

TEST(ShownTest, KeepsLinesWhereAsked) {
  EXPECT_EQ(Shown("a\n\tb\x1b", true), "a\n\tb\\u001b");
  EXPECT_EQ(Shown("\xff"), "\xef\xbf\xbd");
  EXPECT_EQ(Shown(std::string_view("a\0b", 3)), "a\\u0000b");
}

TEST(IsUuidTest, AcceptsTheTextFormOnly) {
  EXPECT_TRUE(IsUuid("0190a6d2-1111-7abc-8def-0123456789ab"));
  EXPECT_FALSE(IsUuid("0190a6d2-1111-7abc-8def-0123456789a"));
  EXPECT_FALSE(IsUuid("0190a6d2x1111-7abc-8def-0123456789ab"));
  EXPECT_FALSE(IsUuid("g190a6d2-1111-7abc-8def-0123456789ab"));
}

TEST(IsPlainIdTest, AcceptsWhatIsSafeInAUrl) {
  EXPECT_TRUE(IsPlainId("run-1.a_b:c", 71));
  EXPECT_FALSE(IsPlainId("", 71));
  EXPECT_FALSE(IsPlainId("a b", 71));
  EXPECT_FALSE(IsPlainId("../x", 71));
  EXPECT_FALSE(IsPlainId(std::string(72, 'a'), 71));
}

}  // namespace
}  // namespace reprise
