// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace reprise {
namespace {

TEST(Crc32cTest, IsCastagnolis) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32cTest, IsTheSameWithAndWithoutTheInstruction) {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Crc32c(text), Crc32cPortable(text)) << i;
    text += static_cast<char>(i * 37);
  }
}

}  // namespace
}  // namespace reprise
