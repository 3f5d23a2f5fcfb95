// SPDX-License-Identifier: Apache-2.0
#include "server/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};

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

void Log(LogLevel level, std::string_view name, std::string_view line) {
  if (level < g_level.load(std::memory_order_relaxed)) return;
  std::string text = StrCat(Timestamp(), " ", name, " ");
  // Lines may quote client input: keep one event on one line.
  for (const char c : line) {
    text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  text += '\n';
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

void SetLogLevel(LogLevel level) { g_level = level; }

void LogInfo(std::string_view line) { Log(LogLevel::kInfo, "info", line); }
void LogWarning(std::string_view line) {
  Log(LogLevel::kWarning, "warning", line);
}
void LogError(std::string_view line) { Log(LogLevel::kError, "error", line); }

}  // namespace reprise::server
