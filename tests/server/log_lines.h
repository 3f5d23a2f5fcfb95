// SPDX-License-Identifier: Apache-2.0
//
// What the daemons of this process write to the log, as JSON.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "server/core/log.h"

namespace reprise::server {

// Keeps what is logged from its beginning on; one at a time.
class LogLines {
 public:
  LogLines() {
    SetLogFormat(LogFormat::kJson);
    SetLogLevel(LogLevel::kInfo);
    testing::internal::CaptureStderr();
  }
  ~LogLines() {
    if (!ended_) (void)Changes();
  }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  // Ends it; returns the lines of the event "change", oldest first.
  std::vector<nlohmann::json> Changes() {
    ended_ = true;
    SetLogLevel(LogLevel::kOff);
    std::istringstream text(testing::internal::GetCapturedStderr());
    std::vector<nlohmann::json> changes;
    for (std::string line; std::getline(text, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.value("event", "") == "change") {
        changes.push_back(json);
      }
    }
    return changes;
  }
  // The same where there must be one.
  nlohmann::json OnlyChange() {
    const std::vector<nlohmann::json> changes = Changes();
    EXPECT_EQ(changes.size(), 1u);
    return changes.at(0);
  }

 private:
  bool ended_ = false;
};

}  // namespace reprise::server
