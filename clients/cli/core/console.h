// SPDX-License-Identifier: Apache-2.0
//
// Where the command writes: results to stdout, everything else to stderr.
// Around a job everything goes to stderr, because stdout belongs to the job.
// Colour and the progress line are used only on a terminal, and never with
// --json, --quiet, NO_COLOR or TERM=dumb. Texts may hold names from files and
// jobs: they are written as base/text.h shows them.
#pragma once

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
  // Like Error, with a given sentence and exit code.
  int Fail(int exit_code, std::string_view sentence);

  // Progress replaces the progress line; ClearProgress removes it.
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

}  // namespace reprise::cli
