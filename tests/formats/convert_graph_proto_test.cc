// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "formats/convert/graph_proto.h"
#include "tests/cli/small_graph.h"

namespace reprise::formats {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::HasSubstr;
using testing::Not;

// Returns the error message after one change to a good graph, or "" if the
// graph is accepted.
std::string After(const std::function<void(v1::StepGraph&)>& change) {
  v1::StepGraph graph = SmallGraph();
  change(graph);
  return ToPlanner(graph).status().message();
}

TEST(GraphProto, WhatThePlannerKnowsComesBack) {
  v1::StepGraph proto = SmallGraph();
  proto.mutable_storages(0)->set_release_op(3);
  proto.mutable_storages(1)->set_pinned(true);
  proto.mutable_storages(0)->set_stays(true);
  proto.mutable_storages(1)->set_saved_for_backward(true);
  proto.mutable_ops(1)->set_kind(v1::OP_KIND_SEEDED);
  proto.mutable_ops(1)->set_state_bytes(16);
  proto.mutable_ops(1)->set_again_ns(5);

  const auto graph = ToPlanner(proto);

  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph->storages[0].release_op, 3);
  EXPECT_EQ(graph->ops[3].module, "layers.2");
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*graph), proto));
}

TEST(GraphProto, AGoodGraphIsAccepted) {
  EXPECT_EQ(After([](v1::StepGraph&) {}), "");
}

TEST(GraphProto, IdsAreCheckedAgainstPositions) {
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(2)->set_id(7); }),
              HasSubstr("ops[2].id"));
  EXPECT_THAT(After([](auto& g) { g.mutable_storages(1)->set_id(0); }),
              HasSubstr("storages[1].id"));
}

TEST(GraphProto, ReferencesAreCheckedAgainstTheGraph) {
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(3)->set_reads(2, 5); }),
              HasSubstr("ops[3].reads[2]: there is no storage 5"));
  EXPECT_THAT(
      After([](auto& g) { g.mutable_ops(3)->set_reads(0, 0xffffffffu); }),
      HasSubstr("there is no storage 4294967295"));
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(0)->set_writes(0, 99); }),
              HasSubstr("ops[0].writes[0]"));
  EXPECT_THAT(After([](auto& g) { g.set_required(0, 5); }),
              HasSubstr("required[0]"));
  EXPECT_THAT(After([](auto& g) { g.mutable_storages(0)->set_release_op(5); }),
              HasSubstr("storages[0].release_op"));
  EXPECT_THAT(After([](auto& g) { g.add_tensors()->set_storage(9); }),
              HasSubstr("tensors[0].storage"));
}

TEST(GraphProto, WhatMakesNoSenseAsAProgramIsRefused) {
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(0)->add_reads(1); }),
              HasSubstr("ops[0]"))
      << "a cycle is a read before its write";
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(1)->add_writes(0); }), Not(""))
      << "two writers";
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(1)->add_reads(0); }), Not(""))
      << "a duplicate id in a list";
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(1)->clear_writes(); }), Not(""))
      << "a storage nobody writes";
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(1)->add_mutates(1); }), Not(""))
      << "mutated but not read";
  EXPECT_THAT(After([](auto& g) { g.clear_ops(); }), HasSubstr("ops"));
}

TEST(GraphProto, NumbersAreCheckedForSignAndOverflow) {
  EXPECT_THAT(After([](auto& g) { g.mutable_storages(1)->set_bytes(-1); }),
              HasSubstr("storages[1]"));
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(1)->set_time_ns(-1); }),
              HasSubstr("ops[1]"));
  EXPECT_THAT(After([](auto& g) { g.set_static_bytes(-1); }),
              HasSubstr("static_bytes"));
  EXPECT_THAT(After([](auto& g) { g.set_measured_peak_bytes(-1); }),
              HasSubstr("measured_peak_bytes"));
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_NE(After([](auto& g) {
              g.mutable_storages(0)->set_bytes(kHuge);
              g.mutable_storages(1)->set_bytes(kHuge);
            }),
            "");
  EXPECT_NE(After([](auto& g) {
              g.mutable_ops(0)->set_time_ns(kHuge);
              g.mutable_ops(1)->set_time_ns(kHuge);
            }),
            "");
}

TEST(GraphProto, PhasesAndKindsMustBeSaid) {
  EXPECT_THAT(After([](auto& g) { g.mutable_ops(1)->clear_phase(); }),
              HasSubstr("ops[1].phase"));
  EXPECT_THAT(After([](auto& g) {
                g.mutable_ops(1)->set_kind(static_cast<v1::OpKind>(42));
              }),
              HasSubstr("ops[1].kind"));
  EXPECT_THAT(
      After([](auto& g) {
        g.mutable_storages(0)->set_category(static_cast<v1::Category>(42));
      }),
      HasSubstr("storages[0].category"));
}

TEST(GraphProto, SerializedBytesAreReadAndChecked) {
  EXPECT_TRUE(ReadGraphBytes(SmallGraph().SerializeAsString()).ok());
  EXPECT_THAT(ReadGraphBytes("\xff\xff\xff").status().message(),
              HasSubstr("not a serialized StepGraph"));
  EXPECT_THAT(ReadGraphBytes("").status().message(), HasSubstr("ops"));
}

}  // namespace
}  // namespace reprise::formats
