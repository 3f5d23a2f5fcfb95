// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "formats/convert/digest.h"

namespace reprise::formats {
namespace {

TEST(Digest, IsTheFnv1aOfTheBytes) {
  // The published test vectors of FNV-1a-64.
  EXPECT_EQ(IdOf(""), 0xcbf29ce484222325u);
  EXPECT_EQ(IdOf("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(IdOf("foobar"), 0x85944171f73967e8u);
}

TEST(Digest, NumbersAreEightBytesLeastSignificantFirst) {
  EXPECT_EQ(Fnv1a64().Add(int64_t{0x0201}).id(),
            IdOf(std::string_view("\1\2\0\0\0\0\0\0", 8)));
}

TEST(Digest, HexIdsComeBack) {
  EXPECT_EQ(HexId(255), "00000000000000ff");
  EXPECT_EQ(*ParseHexId("00000000000000ff"), 255u);
  EXPECT_EQ(*ParseHexId(HexId(0xfedcba9876543210u)), 0xfedcba9876543210u);
}

TEST(Digest, WhatIsNoIdIsRefused) {
  for (const char* text : {"", "ff", "00000000000000FF", "00000000000000fg",
                           "0000000000000000", "000000000000000ff"}) {
    EXPECT_FALSE(ParseHexId(text).ok()) << text;
  }
}

}  // namespace
}  // namespace reprise::formats
