// SPDX-License-Identifier: Apache-2.0
//
// Logs one line per event to stderr: time, level, sentence.
//
//   2026-01-31T09:15:02.120Z info listening on 127.0.0.1:7070
#pragma once

#include <string_view>

#include "base/status.h"

namespace reprise::server {

enum class LogLevel { kInfo, kWarning, kError, kOff };

// Parses "info", "warning", "error" or "off".
StatusOr<LogLevel> ParseLogLevel(std::string_view text);

// Lines below this level are not written. Default: info.
void SetLogLevel(LogLevel level);

void LogInfo(std::string_view line);
void LogWarning(std::string_view line);
void LogError(std::string_view line);

}  // namespace reprise::server
