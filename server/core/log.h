// SPDX-License-Identifier: Apache-2.0
//
// Logs one line per event to stderr, as text or as JSON:
//
//   2026-01-31T09:15:02.120Z info run r1 removed: asked for
//   {"time":"2026-01-31T09:15:02.120Z","level":"info","event":"run_removed",
//    "message":"run r1 removed: asked for","run_id":"r1"}          (one line)
//
// As text, only the sentence is written. `event` is a stable name to search
// and alert by; the fields are what the sentence names.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"

namespace reprise::server {

enum class LogLevel { kInfo, kWarning, kError, kOff };
enum class LogFormat { kText, kJson };

// Parses "info", "warning", "error" or "off".
StatusOr<LogLevel> ParseLogLevel(std::string_view text);

// Parses "text" or "json".
StatusOr<LogFormat> ParseLogFormat(std::string_view text);

// Lines below this level are not written. Default: info.
void SetLogLevel(LogLevel level);

// Default: text.
void SetLogFormat(LogFormat format);

// A fact beside the sentence: {"run_id", "r1"} or {"bytes", 42}.
struct LogField {
  std::string_view name;
  std::variant<std::string, int64_t> value;
};
using LogFields = std::initializer_list<LogField>;

// `event` is one word in lower case with underscores: "run_removed".
void LogInfo(std::string_view event, std::string_view line,
             LogFields fields = {});
void LogWarning(std::string_view event, std::string_view line,
                LogFields fields = {});
void LogError(std::string_view event, std::string_view line,
              LogFields fields = {});

// Returns the line that is written, with its line feed. For tests.
std::string FormatLogLine(LogFormat format, std::string_view time,
                          std::string_view level, std::string_view event,
                          std::string_view line, LogFields fields);

}  // namespace reprise::server
