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

}  // namespace
}  // namespace reprise
