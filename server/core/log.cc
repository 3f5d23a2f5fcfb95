// SPDX-License-Identifier: Apache-2.0
#include "server/core/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<LogFormat> g_format{LogFormat::kText};

std::string Timestamp() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = ms / 1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  const size_t n =
      std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + n, sizeof(text) - n, ".%03dZ",
                static_cast<int>(ms % 1000));
  return text;
}

void Log(LogLevel level, std::string_view name, std::string_view event,
         std::string_view line, LogFields fields) {
  if (level < g_level.load(std::memory_order_relaxed)) return;
  const std::string text =
      FormatLogLine(g_format.load(std::memory_order_relaxed), Timestamp(), name,
                    event, line, fields);
  // A single write, so that lines of several threads do not mix.
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

StatusOr<LogLevel> ParseLogLevel(std::string_view text) {
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  if (text == "off") return LogLevel::kOff;
  return InvalidArgument(
      StrCat("log level \"", text, "\": write info, warning, error or off"));
}

StatusOr<LogFormat> ParseLogFormat(std::string_view text) {
  if (text == "text") return LogFormat::kText;
  if (text == "json") return LogFormat::kJson;
  return InvalidArgument(
      StrCat("log format \"", text, "\": write text or json"));
}

void SetLogLevel(LogLevel level) { g_level = level; }
void SetLogFormat(LogFormat format) { g_format = format; }

std::string FormatLogLine(LogFormat format, std::string_view time,
                          std::string_view level, std::string_view event,
                          std::string_view line, LogFields fields) {
  if (format == LogFormat::kText) {
    std::string text = StrCat(time, " ", level, " ");
    // Lines may quote client input: keep one event on one line.
    return text + Shown(line) + '\n';
  }
  nlohmann::ordered_json json = {
      {"time", time}, {"level", level}, {"event", event}, {"message", line}};
  for (const LogField& field : fields) {
    std::visit(
        [&](const auto& value) { json[std::string(field.name)] = value; },
        field.value);
  }
  // Texts may quote client input, which need not be UTF-8.
  return json.dump(-1, ' ', false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         '\n';
}

void LogInfo(std::string_view event, std::string_view line, LogFields fields) {
  Log(LogLevel::kInfo, "info", event, line, fields);
}
void LogWarning(std::string_view event, std::string_view line,
                LogFields fields) {
  Log(LogLevel::kWarning, "warning", event, line, fields);
}
void LogError(std::string_view event, std::string_view line, LogFields fields) {
  Log(LogLevel::kError, "error", event, line, fields);
}

}  // namespace reprise::server
