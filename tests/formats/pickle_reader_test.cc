// SPDX-License-Identifier: Apache-2.0
#include "formats/import/pickle_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace reprise::formats {
namespace {

using testing::HasSubstr;
using Kind = PickleValue::Kind;

StatusOr<PickleValue> Read(const std::string& bytes,
                           const TakePickleItem& take = {},
                           const PickleLimits& limits = {}) {
  ByteSource source = ByteSource::Over(bytes);
  return ReadPickle(source, take, limits);
}

std::string Bytes(std::initializer_list<int> codes) {
  std::string bytes;
  for (const int code : codes) bytes += static_cast<char>(code);
  return bytes;
}

// Prefixes `rest` with PROTO 2.
std::string Two(const std::string& rest) { return Bytes({0x80, 2}) + rest; }

TEST(PickleReaderTest, ReadsIntegersOfEveryWidth) {
  int64_t value = 0;

  ASSERT_TRUE(Read(Two("K\xff."))->AsInt(value));
  EXPECT_EQ(value, 255);
  ASSERT_TRUE(Read(Two("J\xff\xff\xff\xff."))->AsInt(value));
  EXPECT_EQ(value, -1);
  ASSERT_TRUE(Read(Two(Bytes({0x8a, 5, 0, 0, 0, 0, 0x80, '.'})))->AsInt(value));
  EXPECT_EQ(value, -(int64_t{1} << 39));
  ASSERT_TRUE(Read(Two(Bytes({0x8a, 0, '.'})))->AsInt(value));
  EXPECT_EQ(value, 0);
}

TEST(PickleReaderTest, ReadsAddressesAbove2To63) {
  // Nine bytes: 2^64 - 1 and a sign byte of 0.
  const auto value = Read(
      Two(Bytes({0x8a, 9, 255, 255, 255, 255, 255, 255, 255, 255, 0, '.'})));

  uint64_t address = 0;
  ASSERT_TRUE(value.ok() && value->AsAddress(address));
  EXPECT_EQ(address, UINT64_MAX);
  int64_t number = 0;
  EXPECT_FALSE(value->AsInt(number));
}

TEST(PickleReaderTest, RefusesIntegersOfMoreThan64Bits) {
  const auto value =
      Read(Two(Bytes({0x8a, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, '.'})));

  EXPECT_THAT(value.status().message(), HasSubstr("more than 64 bits"));
}

TEST(PickleReaderTest, ReadsWhatPythonWritesOfADict) {
  // pickle.dumps({"a": [1, None, True], "b": (2.5,)}, protocol=4)
  const auto value =
      Read(Bytes({0x80, 4, 0x95, 33, 0, 0, 0, 0, 0, 0, 0, '}', 0x94, '('}) +
           Bytes({0x8c, 1, 'a', 0x94, ']', 0x94, '(', 'K', 1, 'N', 0x88, 'e'}) +
           Bytes({0x8c, 1, 'b', 0x94, 'G', 0x40, 0x04, 0, 0, 0, 0, 0, 0, 0x85,
                  0x94, 'u', '.'}));

  ASSERT_TRUE(value.ok()) << value.status().message();
  const PickleValue* a = value->Find("a");
  ASSERT_NE(a, nullptr);
  ASSERT_EQ(a->items().size(), 3U);
  EXPECT_EQ(a->items()[1].kind(), Kind::kNone);
  const PickleValue* b = value->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->items().at(0).kind(), Kind::kFloat);
}

TEST(PickleReaderTest, RefusesToRunAnythingAndNamesTheByte) {
  // pickle.dumps(os.system), and the opcodes that would call it.
  for (const auto& [code, name] :
       {std::pair{"cos\nsystem\n(S'true'\ntR.", "GLOBAL"},
        {"\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"},
        {"NR.", "REDUCE"},
        {"Nb.", "BUILD"},
        {"ios\nsystem\n.", "INST"},
        {"(o.", "OBJ"},
        {"N\x81.", "NEWOBJ"},
        {"\x82\x01.", "EXT1"},
        {"P1\n.", "PERSID"}}) {
    const auto value = Read(Two(code));

    EXPECT_EQ(value.status().code(), Code::kInvalidArgument) << name;
    EXPECT_THAT(value.status().message(), HasSubstr(name));
    EXPECT_THAT(value.status().message(), HasSubstr("wants to run code"));
    EXPECT_THAT(value.status().message(), HasSubstr("byte "));
  }
}

TEST(PickleReaderTest, RefusesProtocolsItDoesNotKnow) {
  EXPECT_THAT(Read(Bytes({0x80, 6, 'N', '.'})).status().message(),
              HasSubstr("byte 0: pickle protocol 6"));
  EXPECT_THAT(Read("(dp0\n.").status().message(),
              HasSubstr("not a pickle of protocol 2 to 5"));
}

TEST(PickleReaderTest, EveryPrefixOfAPickleEndsTooEarly) {
  const std::string whole =
      Two(Bytes({'}', 'q', 0, '(', 'X', 1, 0,   0, 0,   'a', 'q', 1,
                 ']', 'q', 2, '(', 'K', 1, 'K', 2, 'e', 'u', '.'}));
  ASSERT_TRUE(Read(whole).ok());

  for (size_t size = 1; size < whole.size(); ++size) {
    EXPECT_THAT(Read(whole.substr(0, size)).status().message(),
                HasSubstr("ends too early"))
        << size;
  }
}

TEST(PickleReaderTest, AClaimedLengthCostsNothing) {
  // Claims a text of 2^31 bytes without any of them.
  const auto value = Read(Two(Bytes({'X', 0, 0, 0, 0x80, '.'})));
  EXPECT_EQ(value.status().code(), Code::kResourceExhausted);

  const auto short_one = Read(Two(Bytes({'X', 0, 0, 0x10, 0, 'a'})));
  EXPECT_THAT(short_one.status().message(), HasSubstr("ends too early"));
}

TEST(PickleReaderTest, RefusesAContainerThatHoldsItself) {
  // l = []; l.append(l)
  const auto direct = Read(Two(Bytes({']', 'q', 0, 'h', 0, 'a', '.'})));
  EXPECT_THAT(direct.status().message(), HasSubstr("holds itself"));

  // a = []; b = [a]; a.append(b)
  const auto around =
      Read(Two(Bytes({']', 'q', 0, ']', 'h', 0, 'a', 'a', '.'})));
  EXPECT_THAT(around.status().message(), HasSubstr("holds itself"));
}

TEST(PickleReaderTest, LimitsDepthAndMemory) {
  const std::string deep =
      Two(std::string(100, ']') + std::string(99, 'a') + ".");
  EXPECT_EQ(Read(deep).status().code(), Code::kResourceExhausted);

  // [[], [], ...]: a pickle of 100 KB that would need about 20 MB.
  std::string wide = Two("](");
  for (int i = 0; i < 100'000; ++i) wide += ']';
  wide += "e.";
  EXPECT_THAT(Read(wide, {}, {.held_bytes = 4 << 20}).status().message(),
              HasSubstr("needs more than 4 MiB at once"));
}

TEST(PickleReaderTest, NothingStaysInMemory) {
  const int64_t before = PickleNode::held_bytes;

  (void)Read(
      Two(Bytes({'}', '(', 'X', 1, 0, 0, 0, 'a', ']', ')', 'a', 'u', '.'})));
  (void)Read(Two(Bytes({']', '(', ']', ']', 'e'})));

  EXPECT_EQ(PickleNode::held_bytes, before);
}

TEST(PickleReaderTest, TakenItemsAreForgottenButForWhatTheyShare) {
  // {"trace": [{"f": [frame]}, {"f": [frame again]}, list of the first again]}
  std::string pickle = Two(Bytes({'}', '(', 'X', 5, 0, 0, 0}) + "trace");
  pickle += "](";
  pickle += Bytes({'}', 'q', 0, 'X', 1,   0, 0,   0, 'f', 'q', 1,
                   ']', 'q', 2, '}', 'q', 3, 'X', 8, 0,   0,   0});
  pickle +=
      "filename" + Bytes({'q', 4, 'X', 1, 0, 0, 0, 'x', 'q', 5, 's', 'a', 's'});
  pickle += "e(";
  pickle += Bytes({'}', 'h', 1, ']', 'h', 3, 'a', 's', 'h', 2});
  pickle += "eu.";
  std::vector<PickleValue> seen;
  const auto value = Read(
      pickle,
      [&](const PickleSpot& spot, const PickleValue& item) -> StatusOr<bool> {
        if (spot.key != "trace") return false;
        EXPECT_EQ(spot.nested, 0);
        seen.push_back(item);
        return true;
      });

  ASSERT_TRUE(value.ok()) << value.status().message();
  ASSERT_EQ(seen.size(), 3U);
  const PickleValue* frames = seen[1].Find("f");
  ASSERT_NE(frames, nullptr);
  EXPECT_EQ(frames->items().at(0).Find("filename")->text(), "x");
  EXPECT_EQ(seen[2].kind(), Kind::kGone);
  EXPECT_TRUE(value->Find("trace")->items().empty());
}

// Returns {"t": [{"frames": [frame]}, {"frames": the same list} ...]}; the
// items are read one by one.
std::string SharedStacks(int items) {
  std::string pickle = Two(Bytes({'}', 'X', 1, 0, 0, 0, 't'}) + "](");
  const std::string key = Bytes({'X', 6, 0, 0, 0}) + "frames";
  pickle += "}" + key + Bytes({']', 'q', 2, '}', 'X', 8, 0, 0, 0}) +
            "filename" + Bytes({'X', 1, 0, 0, 0, 'x', 's', 'a', 's', 'e'});
  for (int i = 1; i < items; ++i) {
    pickle += "(}" + key + Bytes({'h', 2, 's', 'e'});
  }
  return pickle + "s.";
}

TEST(PickleReaderTest, AStackIsKnownHoweverManyItemsShareIt) {
  int known = 0;
  const auto value = Read(
      SharedStacks(50),
      [&](const PickleSpot& spot, const PickleValue& item) -> StatusOr<bool> {
        if (spot.key != "t") return false;
        const PickleValue* frames = item.Find("frames");
        known += frames != nullptr && frames->items().size() == 1;
        return true;
      });

  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(known, 50);
}

TEST(PickleReaderTest, AStackThatDoesNotFitIsForgottenAndTheRestIsRead) {
  int gone = 0;
  std::string bytes = SharedStacks(3);
  ByteSource source = ByteSource::Over(bytes);
  PickleLimits limits;
  limits.held_bytes = 2200;  // the first item takes half of it
  const auto value = ReadPickle(
      source,
      [&](const PickleSpot& spot, const PickleValue& item) -> StatusOr<bool> {
        if (spot.key != "t") return false;
        gone += item.Find("frames")->kind() == Kind::kGone;
        return true;
      },
      limits);

  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(gone, 2);
}

TEST(PickleReaderTest, SaysWhichInnerListAnItemIsFor) {
  // {"t": [[1], [], [2, 3]]}
  const std::string pickle =
      Two(Bytes({'}', 'X', 1,   0,   0,   0, 't', ']', '(', ']', 'K', 1,
                 'a', ']', ']', '(', 'K', 2, 'K', 3,   'e', 'e', 's', '.'}));
  std::vector<std::pair<size_t, int64_t>> seen;
  const auto value = Read(
      pickle,
      [&](const PickleSpot& spot, const PickleValue& item) -> StatusOr<bool> {
        if (spot.nested != 1) return false;
        int64_t number = 0;
        item.AsInt(number);
        seen.emplace_back(spot.position, number);
        return true;
      });

  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_THAT(seen, testing::ElementsAre(std::pair{0U, 1}, std::pair{2U, 2},
                                         std::pair{2U, 3}));
}

}  // namespace
}  // namespace reprise::formats
