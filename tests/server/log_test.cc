// SPDX-License-Identifier: Apache-2.0
#include "server/core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace reprise::server {
namespace {

TEST(LogTest, AsTextAnEventIsTimeLevelAndSentence) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, "2026-01-31T09:15:02.120Z", "info",
                          "run_removed", "run r1 removed", {{"run_id", "r1"}}),
            "2026-01-31T09:15:02.120Z info run r1 removed\n");
}

TEST(LogTest, AsJsonAnEventIsOneObjectWithItsFields) {
  const std::string line =
      FormatLogLine(LogFormat::kJson, "2026-01-31T09:15:02.120Z", "warning",
                    "quota_reached", "run r1 has used its quota",
                    {{"run_id", "r1"}, {"quota_bytes", int64_t{1} << 40}});

  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["time"], "2026-01-31T09:15:02.120Z");
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["event"], "quota_reached");
  EXPECT_EQ(json["message"], "run r1 has used its quota");
  EXPECT_EQ(json["run_id"], "r1");
  EXPECT_EQ(json["quota_bytes"], int64_t{1} << 40);
}

// Text may be a client's: it may neither end the line, nor the string, nor the
// JSON.
TEST(LogTest, HostileTextStaysOneJsonString) {
  const std::string hostile("a\"b\\c\nd\x01\x7f\xff}\0e", 12);
  const std::string line = FormatLogLine(LogFormat::kJson, "t", "info", "e",
                                         hostile, {{"file", hostile}});

  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["message"], json["file"]);
  const std::string message = json["message"];
  EXPECT_TRUE(message.starts_with("a\"b\\c\nd\x01\x7f\xEF\xBF\xBD}"))
      << message;
}

TEST(LogTest, AFormatThatIsNoneIsRefused) {
  EXPECT_TRUE(ParseLogFormat("text").ok());
  EXPECT_TRUE(ParseLogFormat("json").ok());
  EXPECT_EQ(ParseLogFormat("xml").status().message(),
            "log format \"xml\": write text or json");
}

}  // namespace
}  // namespace reprise::server
