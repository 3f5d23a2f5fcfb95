// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/str_cat.h"
#include "server/collect/agent_session.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

TEST(MomentTest, ScribbledWordsAreLeftOut) {
  const v1::Moment moment = MomentOf({.step = UINT64_MAX,
                                      .step_ns = UINT64_MAX,
                                      .graph_id = 1,
                                      .plan_id = 0,
                                      .op = UINT64_MAX,
                                      .phase = 77,
                                      .pad = {}});

  EXPECT_EQ(moment.step(), uint64_t{1} << 62);
  EXPECT_EQ(moment.at_ns(), 0);
  EXPECT_EQ(moment.phase(), v1::PHASE_UNSPECIFIED);
  EXPECT_EQ(moment.plan_id(), "");
  EXPECT_FALSE(moment.has_op());
}

TEST(MomentTest, AnOpWithoutAGraphIsNobodysOp) {
  EXPECT_FALSE(MomentOf({.step = 1,
                         .step_ns = 1,
                         .graph_id = 0,
                         .plan_id = 0,
                         .op = 5,
                         .phase = 1,
                         .pad = {}})
                   .has_op());
}

TEST(MomentTest, NamesTheFieldThatIsWrong) {
  const auto why = [](std::string_view fields) {
    return ParseMoment(StrCat("{\"reason\": 2, ", fields, "}"))
        .status()
        .message();
  };

  EXPECT_THAT(why("\"live_bytes\": -1"), HasSubstr("moment.live_bytes"));
  EXPECT_THAT(why("\"graph_id\": \"../x\""), HasSubstr("moment.graph_id"));
  EXPECT_THAT(why("\"storages\": [{}, {\"bytes\": -5}]"),
              HasSubstr("storages[1].bytes"));
  EXPECT_THAT(why("\"step\": \"18446744073709551615\""),
              HasSubstr("moment.step"));
}

TEST(MomentTest, StoragesBeyondTheLimitAreCounted) {
  std::string list;
  for (int i = 0; i < kMaxHeldStorages + 3; ++i) {
    list += StrCat(i == 0 ? "" : ",", "{\"bytes\": 2}");
  }

  const auto moment = ParseMoment(
      StrCat("{\"reason\": 2, \"more_storages\": 4, \"more_bytes\": 10, "
             "\"storages\": [",
             list, "]}"));

  ASSERT_TRUE(moment.ok()) << moment.status().message();
  EXPECT_EQ(moment->storages_size(), kMaxHeldStorages);
  EXPECT_EQ(moment->more_storages(), 7u);
  EXPECT_EQ(moment->more_bytes(), 16);  // 10 + 3 * 2
}

}  // namespace
}  // namespace reprise::server
