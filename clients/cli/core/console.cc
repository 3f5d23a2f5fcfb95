// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/core/console.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "formats/convert/json_fields.h"

namespace reprise::cli {
namespace {

bool IsTerminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && (term == nullptr || std::string(term) != "dumb");
}

bool NoColorAsked() {
  // https://no-color.org: set and not empty, whatever its value.
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

// Returns whether stdout is a pipe whose other end is closed.
bool ReaderIsGone() {
  pollfd out = {STDOUT_FILENO, 0, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// Returns a line as it may be shown; a line feed before it stays, which makes an
// empty line above it.
std::string ShownLine(std::string_view text) {
  const bool apart = text.starts_with('\n');
  return (apart ? "\n" : "") + Shown(text.substr(apart ? 1 : 0));
}

void Write(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
}

}  // namespace

Console::Console(const Globals& globals)
    : json_(globals.json),
      may_color_(!globals.json && !globals.quiet && !globals.no_color &&
                 !NoColorAsked()),
      color_(may_color_ && IsTerminal(STDOUT_FILENO)),
      progress_(!globals.json && !globals.quiet && IsTerminal(STDERR_FILENO)),
      quiet_(globals.quiet || globals.json) {}

bool Console::results_on_terminal() const {
  return !json_ &&
         isatty(results_ == stderr ? STDERR_FILENO : STDOUT_FILENO) == 1;
}

bool Console::notes_on_terminal() const {
  return !quiet_ && isatty(STDERR_FILENO) == 1;
}

void Console::LeaveStdout() {
  if (json_) return;
  results_ = stderr;
  color_ = may_color_ && IsTerminal(STDERR_FILENO);
}

void Console::Line(std::string_view text, Tone tone) {
  static constexpr std::string_view kCodes[] = {"", "\033[1;32m", "\033[1;31m",
                                                "\033[2m"};
  ClearProgress();
  const bool coloured = color_ && tone != Tone::kPlain;
  if (coloured) Write(results_, kCodes[static_cast<int>(tone)]);
  Write(results_, ShownLine(text));
  if (coloured) Write(results_, "\033[0m");
  Write(results_, "\n");
}

void Console::Raw(std::string_view text) {
  ClearProgress();
  Write(results_, Shown(text, /*keeps_lines=*/true));
}

void Console::Note(std::string_view text) {
  if (quiet_) return;
  ClearProgress();
  std::fflush(stdout);
  Write(stderr, StrCat(ShownLine(text), "\n"));
}

int Console::Error(const Status& status) {
  return Fail(ExitCodeOf(status), status.message());
}

int Console::UsageError(std::string_view sentence) {
  return Fail(kUsage, sentence);
}

int Console::Fail(int exit_code, std::string_view sentence) {
  ClearProgress();
  std::fflush(stdout);
  Write(stderr, StrCat("reprise: ", Shown(sentence), "\n"));
  return exit_code;
}

void Console::Progress(std::string_view text) {
  if (!progress_) return;
  // Erase to the end of the line: the new text may be shorter.
  Write(stderr, StrCat("\r", Shown(text), "\033[K"));
  std::fflush(stderr);
  progress_shown_ = true;
}

void Console::ClearProgress() {
  if (!progress_shown_) return;
  Write(stderr, "\r\033[K");
  std::fflush(stderr);
  progress_shown_ = false;
}

bool Console::Flush() {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  return written || ReaderIsGone();
}

std::string LocalTime(int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string ProtoToJson(const google::protobuf::Message& message) {
  return formats::ToJson(message).dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace reprise::cli
