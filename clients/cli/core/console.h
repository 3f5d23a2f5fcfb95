// SPDX-License-Identifier: Apache-2.0
//
// Where the command writes: results to stdout, everything else to stderr.
// Around a job everything goes to stderr, because stdout belongs to the job.
// Colour and the progress line are used only on a terminal, and never with
// --json, --quiet, NO_COLOR or TERM=dumb. Texts may hold names from files and
// jobs: they are written as base/str_cat.h shows them.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise::cli {

// Flags that every command takes.
struct Globals {
  std::string server;  // host:port; empty: environment, then server.json
  // Empty: environment, then the one that server.json names.
  std::string token_file;
  std::string ca;           // CA certificate for a server over https
  std::string certificate;  // of this client, if the server requires one
  std::string key;
  bool json = false;
  bool quiet = false;
  bool no_color = false;
};

enum class Tone { kPlain, kGood, kBad, kFaint };

class Console {
 public:
  explicit Console(const Globals& globals);

  // From now on results go to stderr, because stdout belongs to a job. No
  // effect with --json, which prints one value to stdout, after the job's
  // output.
  void LeaveStdout();

  // Writes a line of the result.
  void Line(std::string_view text, Tone tone = Tone::kPlain);
  // Writes text that has its own line ends (JSON, tables).
  void Raw(std::string_view text);
  // Writes a remark to stderr; --quiet and --json suppress it.
  void Note(std::string_view text);
  // Writes `reprise: <sentence>` to stderr; returns the exit code of the
  // status.
  int Error(const Status& status);
  // Like Error, with exit code 2.
  int UsageError(std::string_view sentence);
  // Like UsageError if it is about a flag or a variable, else like Error.
  int ConnectError(const Status& status) {
    return status.code() == Code::kInvalidArgument
               ? UsageError(status.message())
               : Error(status);
  }
  // Like Error, with a given sentence and exit code.
  int Fail(int exit_code, std::string_view sentence);

  // Progress replaces the progress line; ClearProgress removes it, as does all
  // that is written.
  void Progress(std::string_view text);
  void ClearProgress();
  bool shows_progress() const { return progress_; }

  // Whether a person reads what Line, or Note, writes. Only then may links
  // carry the token, which must not get into files and logs.
  bool results_on_terminal() const;
  bool notes_on_terminal() const;

  // Returns false once writing to stdout has failed, for example on a full
  // disk. A reader that has read enough (`| head`) is not an error.
  bool Flush();

 private:
  bool json_ = false;
  std::FILE* results_ = stdout;
  bool may_color_ = false;
  bool color_ = false;
  bool progress_ = false;
  bool quiet_ = false;
  bool progress_shown_ = false;
};

// Returns a Unix time as "2026-11-23 15:30:41", in the time zone of the user.
std::string LocalTime(int64_t unix_ns);

// Pads texts with spaces to `width` bytes; longer texts stay as they are.
inline std::string Left(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

inline std::string Right(std::string text, size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

// Exit codes. Scripts depend on them, so they never change (docs/command.md).
enum ExitCode {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kNoPlan = 3,       // proven: no plan fits in the budget
  kUnreachable = 4,  // there is no server
  kTimedOut = 5,     // the time limit was reached without a plan
  kInterrupted = 130,
};

inline int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kDone;
    case Code::kUnavailable:
      return kUnreachable;
    case Code::kDeadlineExceeded:
      return kTimedOut;
    case Code::kCancelled:
      return kInterrupted;
    default:
      return kFailed;
  }
}

// Protos as JSON for scripts: field names as in the proto, integers as numbers
// (bytes and ns fit in 2^53; proto3 JSON would quote them), enums by name, and
// every scalar present even if it is 0.

// Returns JSON on one line.
std::string ProtoToJson(const google::protobuf::Message& message);

}  // namespace reprise::cli
