// SPDX-License-Identifier: Apache-2.0
//
// Where the command writes: results on stdout, all else on stderr; around a
// job, whose stdout it is, all on stderr. Colour and the progress line exist on
// a terminal only, and never with --json, --quiet, NO_COLOR or TERM=dumb.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/status.h"

namespace reprise::cli {

// Flags that every command takes.
struct Globals {
  std::string server;  // host:port; empty: environment, then server.json
  // Empty: environment, then what server.json names.
  std::string token_file;
  std::string ca;           // of a server over https
  std::string certificate;  // of this client, where such a server asks for one
  std::string key;
  bool json = false;
  bool quiet = false;
  bool no_color = false;
};

enum class Tone { kPlain, kGood, kBad, kFaint };

class Console {
 public:
  explicit Console(const Globals& globals);

  // From here on results go to stderr: stdout belongs to a job. Not with
  // --json, which asks for one on stdout, behind what the job has printed.
  void LeaveStdout();

  // A line of the result.
  void Line(std::string_view text, Tone tone = Tone::kPlain);
  // Text that has its own line ends (JSON, tables).
  void Raw(std::string_view text);
  // A remark on stderr, dropped by --quiet and --json.
  void Note(std::string_view text);
  // `reprise: <sentence>` on stderr; returns the exit code of the status.
  int Error(const Status& status);
  // The same with exit code 2.
  int UsageError(std::string_view sentence);
  // FAILED with a sentence of its own exit code.
  int Fail(int exit_code, std::string_view sentence);

  // Replaces the progress line; ClearProgress takes it away.
  void Progress(std::string_view text);
  void ClearProgress();
  bool shows_progress() const { return progress_; }

  // A person reads what Line, or Note, writes: links may carry the token, which
  // must not get into files and logs.
  bool results_on_terminal() const;
  bool notes_on_terminal() const;

  // False once stdout could not be written, as on a full disk. A reader that
  // has read enough (`| head`) is no failure.
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
