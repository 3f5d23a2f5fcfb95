// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/core/plan_options.h"

#include <charconv>
#include <csignal>

#include "base/str_cat.h"
#include "formats/convert/capabilities.h"

namespace reprise::cli {
namespace {

volatile std::sig_atomic_t g_asked = 0;

void OnSignal(int) { g_asked = 1; }

}  // namespace

using std::chrono::milliseconds;
using std::chrono::steady_clock;

StatusOr<v1::Capabilities> ExecutorCapabilities(const std::string& name) {
  const std::string preset = name.substr(0, name.find(':'));
  StatusOr<v1::Capabilities> parsed = formats::ParseCapabilities(name);
  if (parsed.ok() && !name.empty() && name.find(',') == std::string::npos) {
    return parsed;
  }
  if (formats::ParseCapabilities(preset).ok() && !parsed.ok()) {
    return InvalidArgument(StrCat("--executor ", name.substr(0, 40), ": ",
                                  parsed.status().message()));
  }
  return InvalidArgument(StrCat("--executor ", name.substr(0, 40),
                                ": must be one of ",
                                formats::KnownExecutors()));
}

StatusOr<milliseconds> ParseTimeLimit(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  double scale = 0;
  if (unit == "ms") scale = 1;
  if (unit == "s" || unit.empty()) scale = 1000;
  if (unit == "m" || unit == "min") scale = 60'000;
  const double ms = value * scale;
  if (error != std::errc() || !(ms >= 1) || ms > 86'400'000) {
    return InvalidArgument(
        StrCat("--time-limit ", text.substr(0, 40),
               ": must be a time from 1ms to 24 hours, such as 5s or 500ms"));
  }
  return milliseconds(static_cast<int64_t>(ms));
}

StatusOr<double> ParseGap(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  const bool has_unit = unit == "%" || unit == " %" || value == 0;
  if (error != std::errc() || !has_unit || (!unit.empty() && unit[0] > '%') ||
      !(value >= 0 && value <= 1000)) {
    return InvalidArgument(
        StrCat("--gap ", text.substr(0, 40),
               ": must be a percentage of the step time, such as 0.1%"));
  }
  return value / 100;
}

std::string ProgressText(int64_t elapsed_ns, double overhead, double bound) {
  std::string text = StrCat("planning  ", FormatDuration(elapsed_ns));
  if (overhead >= 0) text += StrCat("  overhead ", FormatPercent(overhead));
  if (overhead >= 0 || bound > 0) {
    text += StrCat("  bound ", FormatPercent(bound));
  }
  if (overhead >= 0) text += StrCat("  gap ", FormatPercent(overhead - bound));
  return text;
}

Watch::Watch(Console& console, milliseconds time_limit)
    : console_(console),
      start_(steady_clock::now()),
      shown_(start_),
      time_limit_(time_limit) {}

void Watch::Attach(planner::Request& request) {
  request.should_stop = [this] { return ShouldStop(); };
  request.on_progress = [this](const planner::Progress& progress) {
    progress_ = progress;
    Show();
  };
}

double Watch::elapsed_ms() const {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start_)
      .count();
}

bool Watch::ShouldStop() {
  Show();
  if (CatchInterrupt::Asked()) return true;
  return steady_clock::now() - start_ >= time_limit_;
}

void Watch::Show() {
  const auto now = steady_clock::now();
  if (!console_.shows_progress() || now - shown_ < milliseconds(100)) return;
  shown_ = now;
  console_.Progress(ProgressText(std::chrono::nanoseconds(now - start_).count(),
                                 progress_.overhead, progress_.bound));
}

CatchInterrupt::CatchInterrupt() {
  g_asked = 0;
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESETHAND;  // a second signal has its default effect
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

CatchInterrupt::~CatchInterrupt() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool CatchInterrupt::Asked() { return g_asked != 0; }

}  // namespace reprise::cli
