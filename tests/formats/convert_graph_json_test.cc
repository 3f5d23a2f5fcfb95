// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "formats/convert/graph_json.h"
#include "tests/cli/small_graph.h"

namespace reprise::formats {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::HasSubstr;

std::string Message(const std::string& text) {
  return ReadGraphText(text).status().message();
}

// Returns the small graph's text with one place changed.
std::string Changed(const std::string& from, const std::string& to) {
  std::string text = WriteGraphText(SmallGraph());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in\n" << text;
  return text.replace(at, from.size(), to);
}

TEST(GraphJson, WhatIsWrittenIsReadBackEqual) {
  v1::StepGraph graph = SmallGraph();
  graph.set_source("a \"test\"\n");
  graph.set_flavour("eager-dispatch");
  graph.set_structure("abcd");
  graph.set_measured_peak_bytes(int64_t{1} << 52);
  graph.set_measured_step_ns(93);
  v1::StaticPart& part = *graph.add_static_parts();
  part.set_category(v1::CATEGORY_OPTIMIZER_STATE);
  part.set_bytes(7);
  graph.mutable_storages(0)->set_name("x\u00e9");
  graph.mutable_storages(0)->set_release_op(0);
  graph.mutable_storages(1)->set_pinned(true);
  graph.mutable_storages(0)->set_stays(true);
  graph.mutable_storages(1)->set_saved_for_backward(true);
  graph.mutable_ops(1)->set_kind(v1::OP_KIND_SEEDED);
  graph.mutable_ops(1)->set_state_bytes(16);
  graph.mutable_ops(1)->set_again_ns(5);
  graph.mutable_ops(1)->set_replay_point(false);
  graph.mutable_ops(1)->add_replay_windows(0);
  graph.mutable_ops(1)->add_replay_windows(1);
  graph.mutable_ops(1)->set_call(2);
  graph.mutable_ops(1)->set_ordinal(3);
  graph.mutable_ops(1)->set_source("model.py:212");
  v1::Tensor& tensor = *graph.add_tensors();
  tensor.set_storage(1);
  tensor.set_version(1);
  tensor.add_shape(5);
  tensor.add_shape(20);
  tensor.set_dtype("float32");

  const auto read = ReadGraphText(WriteGraphText(graph));

  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(MessageDifferencer::Equals(*read, graph));
}

TEST(GraphJson, Proto3JsonOfAnAgentIsReadToo) {
  std::string text;
  ASSERT_TRUE(
      google::protobuf::util::MessageToJsonString(SmallGraph(), &text).ok());

  const auto read = ReadGraphText(text);

  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(MessageDifferencer::Equals(*read, SmallGraph()));
}

TEST(GraphJson, UnknownKeysOfAnyShapeAreIgnored) {
  const std::string text = Changed(
      "\"static_bytes\"",
      "\"extra\": {\"ops\": [1, {\"id\": []}]}, \"more\": [[], 1.5], \"no\": "
      "null, \"static_bytes\"");
  EXPECT_EQ(Message(text), "");
  EXPECT_EQ(Message(Changed("\"id\":0,", "\"id\":0,\"q\":-1.5,")), "");
}

TEST(GraphJson, BrokenTextNamesTheByte) {
  EXPECT_EQ(Message(""), "byte 0: the text is empty");
  EXPECT_EQ(Message("{\"format\": 12x}"), "byte 13: not valid JSON near '12x'");
  EXPECT_THAT(Message("{\"a\": \"b\nc\"}"), HasSubstr("byte 8"));
  EXPECT_THAT(Message("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(Message("7"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(Message("{} {}"), HasSubstr("byte 3"));
  const std::string half = WriteGraphText(SmallGraph()).substr(0, 400);
  EXPECT_EQ(Message(half), "byte 400: the JSON ends too early");
}

TEST(GraphJson, DeepNestingIsRefusedBeforeItHurts) {
  const std::string deep = "{\"x\":" + std::string(1'000'000, '[');
  EXPECT_THAT(Message(deep), HasSubstr("nests deeper than 64"));
}

TEST(GraphJson, OtherFilesAreToldApart) {
  EXPECT_EQ(Message("{\"format\": \"reprise.plan/1\", \"ops\": []}"),
            "format: must be \"reprise.graph/1\", got \"reprise.plan/1\"");
  EXPECT_THAT(Message("{\"format\": 3, \"ops\": []}"), HasSubstr("format"));
  EXPECT_THAT(Message("{\"hello\": 1}"), HasSubstr("not a step graph"));
  EXPECT_THAT(Message("{\"traceEvents\": []}"), HasSubstr("not a step graph"));
}

TEST(GraphJson, MissingKeysAreNamed) {
  EXPECT_THAT(Message(Changed("\"static_bytes\"", "\"statics\"")),
              HasSubstr("static_bytes: missing"));
  EXPECT_EQ(Message(Changed("\"bytes\":8", "\"size\":8")),
            "storages[2].bytes: missing");
  EXPECT_EQ(Message(Changed("\"time_ns\":20,", "")), "ops[1].time_ns: missing");
}

TEST(GraphJson, WrongTypesAreNamed) {
  EXPECT_EQ(Message(Changed("\"time_ns\":20", "\"time_ns\":\"20\"")),
            "ops[1].time_ns: must be an integer, got \"20\"");
  EXPECT_EQ(Message(Changed("\"time_ns\":20", "\"time_ns\":[20]")),
            "ops[1].time_ns: must be an integer, got a list");
  EXPECT_EQ(Message(Changed("\"time_ns\":20", "\"time_ns\":null")),
            "ops[1].time_ns: missing");
  EXPECT_THAT(Message(Changed("\"time_ns\":20", "\"time_ns\":2.5")),
              HasSubstr("ops[1].time_ns: must be an integer"));
  EXPECT_EQ(Message(Changed("\"reads\":[0]", "\"reads\":0")),
            "ops[1].reads: must be a list of ids, got 0");
  EXPECT_EQ(Message(Changed("\"reads\":[0]", "\"reads\":[[0]]")),
            "ops[1].reads[0]: must be an integer, got a list");
  EXPECT_EQ(Message(Changed("\"reads\":[0]", "\"reads\":[{}]")),
            "ops[1].reads[0]: must be an integer, got an object");
  EXPECT_THAT(Message(Changed("\"ops\":[", "\"ops\":[3,")),
              HasSubstr("ops: must be a list of objects"));
  EXPECT_THAT(
      Message(Changed("\"phase\":\"backward\"", "\"phase\":\"back\"")),
      HasSubstr("must be forward, backward or optimizer, got \"back\""));
}

TEST(GraphJson, NumbersOutOfRangeAreNamed) {
  EXPECT_EQ(Message(Changed("\"bytes\":8", "\"bytes\":-8")),
            "storages[2].bytes: must not be negative, got -8");
  EXPECT_THAT(Message(Changed("\"bytes\":8", "\"bytes\":9223372036854775808")),
              HasSubstr("storages[2].bytes"));
  EXPECT_THAT(Message(Changed("\"bytes\":8", "\"bytes\":1e300")),
              HasSubstr("storages[2].bytes"));
  EXPECT_THAT(Message(Changed("\"id\":2", "\"id\":99999999999")),
              HasSubstr("storages[2].id"));
}

TEST(GraphJson, WhatTheGraphMeansIsCheckedToo) {
  EXPECT_THAT(Message(Changed("\"id\":2", "\"id\":3")),
              HasSubstr("storages[2].id"));
  EXPECT_THAT(Message(Changed("\"reads\":[]", "\"reads\":[3]")),
              HasSubstr("ops[0]"))
      << "a cycle is a read before its write";
  EXPECT_THAT(Message(Changed("\"id\":2,", "\"id\":2,\"id\":2,")),
              HasSubstr("storages[2].id: given twice"));
}

// Text that is cut anywhere or has any byte changed never crashes the reader,
// and only whole graphs are accepted.
TEST(GraphJson, NoByteOfDamageIsFatal) {
  const std::string good = WriteGraphText(SmallGraph());
  for (size_t n = 0; n + 2 < good.size(); ++n) {
    EXPECT_FALSE(ReadGraphText(good.substr(0, n)).ok()) << n;
  }
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random());
    const auto read = ReadGraphText(bad);
    EXPECT_NE(read.ok(), !read.status().message().empty());
  }
}

}  // namespace
}  // namespace reprise::formats
