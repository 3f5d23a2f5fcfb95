// SPDX-License-Identifier: Apache-2.0
#include "base/uuid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reprise {
namespace {

using ::testing::MatchesRegex;

TEST(Uuid, IsOfVersion7AndNeverTheSame) {
  EXPECT_THAT(NewUuid(), MatchesRegex("[0-9a-f]+-[0-9a-f]+-7[0-9a-f]+-[89ab]"
                                      "[0-9a-f]+-[0-9a-f]+"));
  EXPECT_EQ(NewUuid().size(), 36u);
  EXPECT_NE(NewUuid(), NewUuid());
}

TEST(Uuid, OfANameAndATimeIsTheSameAgainAndAnotherForAnother) {
  const std::string id = UuidOf(0x0123456789ab, "4711 1 2 0");

  EXPECT_THAT(id, MatchesRegex("01234567-89ab-7[0-9a-f]+-[89ab]"
                               "[0-9a-f]+-[0-9a-f]+"));
  EXPECT_EQ(id.size(), 36u);
  EXPECT_EQ(UuidOf(0x0123456789ab, "4711 1 2 0"), id);
  EXPECT_NE(UuidOf(0x0123456789ab, "4711 1 2 1"), id);
  EXPECT_NE(UuidOf(0x0123456789ac, "4711 1 2 0"), id);
}

}  // namespace
}  // namespace reprise
