// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "clients/cli/core/files.h"
#include "formats/convert/graph_json.h"
#include "tests/cli/small_graph.h"

namespace reprise::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Files : public testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "files-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~Files() override { fs::remove_all(folder_); }
  std::string In(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

TEST_F(Files, AreNeverReplacedUnasked) {
  ASSERT_TRUE(WriteFile(In("a"), "one", /*force=*/false).ok());

  const Status again = WriteFile(In("a"), "two", /*force=*/false);

  EXPECT_EQ(again.code(), Code::kAlreadyExists);
  EXPECT_THAT(again.message(), HasSubstr("--force"));
  EXPECT_EQ(*ReadFile(In("a"), 100), "one");
  EXPECT_TRUE(WriteFile(In("a"), "two", /*force=*/true).ok());
  EXPECT_EQ(*ReadFile(In("a"), 100), "two");
  // The temporary file is gone.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Files, DevicesAreWrittenToAndStayDevices) {
  EXPECT_TRUE(WriteFile("/dev/null", "text", /*force=*/true).ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(Files, AFullDiskIsReported) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  EXPECT_EQ(WriteFile("/dev/full", "text", true).code(),
            Code::kResourceExhausted);
}

TEST_F(Files, ALinkIsFollowed) {
  ASSERT_TRUE(WriteFile(In("target"), "one", false).ok());
  fs::create_symlink(In("target"), In("link"));

  ASSERT_TRUE(WriteFile(In("link"), "two", /*force=*/true).ok());

  EXPECT_TRUE(fs::is_symlink(In("link")));
  EXPECT_EQ(*ReadFile(In("target"), 100), "two");
}

TEST_F(Files, WhatCannotBeReadIsSaid) {
  EXPECT_THAT(ReadFile(In("none"), 9).status().message(),
              HasSubstr("no such file"));
  EXPECT_THAT(ReadFile(folder_, 9).status().message(), HasSubstr("folder"));
  ASSERT_TRUE(WriteFile(In("empty"), "", false).ok());
  EXPECT_THAT(ReadFile(In("empty"), 9).status().message(), HasSubstr("empty"));
  ASSERT_TRUE(WriteFile(In("big"), "0123456789", false).ok());
  EXPECT_THAT(ReadFile(In("big"), 9).status().message(), HasSubstr("larger"));
  EXPECT_THAT(WriteFile(In("no/such"), "x", false).message(),
              HasSubstr("there is no folder"));
  EXPECT_THAT(WriteFile(folder_, "x", true).message(), HasSubstr("folder"));
}

TEST_F(Files, APlanIsNamedAfterItsGraph) {
  EXPECT_EQ(PlanPathFor("resnet152.graph.json"), "resnet152.plan.json");
  EXPECT_EQ(PlanPathFor("x.json"), "x.plan.json");
  EXPECT_EQ(PlanPathFor("x.pb"), "x.plan.json");
  EXPECT_EQ(PlanPathFor("x"), "x.plan.json");
  EXPECT_EQ(PlanPathFor(In("g.json")), In("g.plan.json"));
  EXPECT_EQ(PlanPathFor("/proc/g.json"), "g.plan.json")
      << "a folder nobody can write to";
}

TEST_F(Files, AGraphIsReadAsJsonAndAsBytesWithOneId) {
  ASSERT_TRUE(
      WriteFile(In("g.json"), formats::WriteGraphText(SmallGraph()), false)
          .ok());
  ASSERT_TRUE(
      WriteFile(In("g.pb"), SmallGraph().SerializeAsString(), false).ok());

  const auto json = ReadGraph(In("g.json"));
  const auto bytes = ReadGraph(In("g.pb"));

  ASSERT_TRUE(json.ok()) << json.status().message();
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_EQ(json->graph_id, bytes->graph_id);
}

TEST_F(Files, AnErrorInAFileBeginsWithItsPath) {
  ASSERT_TRUE(WriteFile(In("g.json"), "{\"ops\": 3", false).ok());

  EXPECT_EQ(ReadGraph(In("g.json")).status().message(),
            In("g.json") + ": byte 9: the JSON ends too early");
}

}  // namespace
}  // namespace reprise::cli
