// SPDX-License-Identifier: Apache-2.0
//
// reprise: the command. Parses the arguments, finds the verb and runs it. Each
// verb has a file of its own; docs/command.md describes what all verbs have in
// common (streams, --json, exit codes).
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/completion.h"
#include "clients/cli/console.h"
#include "clients/cli/exit_code.h"
#include "clients/cli/misspelt.h"
#include "clients/cli/serve.h"
#include "clients/cli/store_commands.h"

namespace reprise::cli {
namespace {

// The arguments, divided into ours and those of the job or the server.
struct Arguments {
  std::vector<std::string> own;
  std::vector<std::string> job;    // after the first "--" of `run`
  std::vector<std::string> serve;  // after `serve`
  bool is_serve = false;
};

Arguments Split(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") {
      out.job.assign(argv + i + 1, argv + argc);
      return out;
    }
    if (word == "serve" && out.own.empty()) {
      out.is_serve = true;
      out.serve.assign(argv + i + 1, argv + argc);
      return out;
    }
    out.own.push_back(word);
  }
  return out;
}

// Returns a message of CLI11 without its line end.
std::string OneLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) {
    text.pop_back();
  }
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

class Main {
 public:
  explicit Main(Arguments arguments);
  int Run();

 private:
  // Returns the verb that was typed, for its help and its errors.
  CLI::App* Typed();
  int OnParseError(const CLI::ParseError& error, Console& console);

  Arguments arguments_;
  Globals globals_;
  std::string completion_;
  CLI::App app_{
      "Fit a training job into a memory budget with the least extra "
      "time.",
      "reprise"};
  std::vector<std::unique_ptr<Command>> commands_;
  std::vector<CLI::App*> verbs_;
};

Main::Main(Arguments arguments) : arguments_(std::move(arguments)) {
  app_.set_version_flag("--version", "reprise " REPRISE_VERSION);
  app_.add_option("--server", globals_.server,
                  "HOST:PORT or https://HOST:PORT of the server "
                  "(REPRISE_SERVER, else the one that "
                  "runs here)");
  app_.add_option("--token-file", globals_.token_file,
                  "File of the server's token (REPRISE_TOKEN_FILE, else the "
                  "one of the server that runs here)");
  app_.add_option("--ca", globals_.ca,
                  "CA of a server over https, in PEM (REPRISE_CA)");
  app_.add_option("--cert", globals_.certificate,
                  "Certificate of this client, for such a server that asks for "
                  "one (REPRISE_CERT)");
  app_.add_option("--key", globals_.key, "Key of --cert (REPRISE_KEY)");
  app_.add_flag("--json,!--no-json", globals_.json,
                "Print JSON instead of text");
  app_.add_flag("--quiet,-q,!--no-quiet", globals_.quiet,
                "No progress, no remarks, no colour");
  app_.add_flag("--no-color", globals_.no_color, "No colour (NO_COLOR)");
  app_.add_option("--completion", completion_,
                  "Print the completion script for bash, zsh or fish");
  app_.footer(
      "Exit codes: 0 done, 1 failed, 2 usage, 3 no plan fits, 4 no server,\n"
      "5 timed out with nothing, 130 interrupted.\n\n"
      "Example:\n  reprise plan resnet.graph.json --budget 8GiB");
  app_.require_subcommand(0, 1);
  app_.fallthrough();  // --json may follow the verb

  commands_.push_back(MakePlanCommand());
  commands_.push_back(MakeSweepCommand());
  commands_.push_back(MakeExplainCommand());
  commands_.push_back(MakeVerifyCommand());
  commands_.push_back(MakeGenerateCommand());
  commands_.push_back(MakeRunCommand(arguments_.job));
  commands_.push_back(MakeShowCommand());
  commands_.push_back(MakeImportCommand());
  commands_.push_back(MakeExportCommand());
  commands_.push_back(MakeWindowCommand());
  commands_.push_back(MakeDoctorCommand());
  commands_.push_back(MakeServeCommand());
  commands_.push_back(MakeStatusCommand());
  commands_.push_back(MakeRmCommand());
  commands_.push_back(MakeBackupCommand());
  commands_.push_back(MakeVersionCommand());
  for (const auto& command : commands_) {
    verbs_.push_back(command->Define(app_));
  }
}

CLI::App* Main::Typed() {
  for (CLI::App* verb : verbs_) {
    for (const std::string& word : arguments_.own) {
      if (word == verb->get_name()) return verb;
    }
  }
  return &app_;
}

int Main::OnParseError(const CLI::ParseError& error, Console& console) {
  if (error.get_name() == "CallForHelp") {
    CLI::App* typed = Typed();
    console.Raw(typed == &app_ ? app_.help() : typed->help("reprise"));
    return kDone;
  }
  if (error.get_name() == "CallForVersion") {
    console.Line("reprise " REPRISE_VERSION);
    return kDone;
  }
  CLI::App* typed = Typed();
  const std::string verb = typed == &app_ ? "" : " " + typed->get_name();
  // CLI11 may report something missing because a flag is misspelt.
  const std::string unknown = FirstUnknown(app_, *typed, arguments_.own);
  return console.UsageError(
      StrCat(unknown.empty() ? OneLine(error.what()) : unknown,
             "; see `reprise", verb, " --help`"));
}

int Main::Run() {
  // CLI11 expects the words in reverse order.
  std::vector<std::string> reversed(arguments_.own.rbegin(),
                                    arguments_.own.rend());
  try {
    app_.parse(reversed);
  } catch (const CLI::ParseError& error) {
    Console console(globals_);
    return OnParseError(error, console);
  }
  Console console(globals_);
  int exit_code = kDone;
  if (!completion_.empty()) {
    const auto script = CompletionScript(app_, completion_);
    if (!script.ok()) return console.UsageError(script.status().message());
    console.Raw(*script);
  } else if (app_.get_subcommands().empty()) {
    console.Raw(app_.help());
    return console.UsageError("no command; see the list above");
  } else if (!arguments_.job.empty() && Typed()->get_name() != "run") {
    return console.UsageError("`--` belongs to `reprise run`");
  } else {
    for (size_t i = 0; i < verbs_.size(); ++i) {
      if (!verbs_[i]->parsed()) continue;
      exit_code = commands_[i]->Run(globals_, console);
    }
  }
  if (!console.Flush()) {
    return console.Fail(kFailed,
                        "stdout: cannot be written; is the disk full?");
  }
  return exit_code;
}

}  // namespace
}  // namespace reprise::cli

int main(int argc, char** argv) {
  // If the reader is gone (`| head`), that is an error to report, not a crash.
  std::signal(SIGPIPE, SIG_IGN);
  reprise::cli::Arguments arguments = reprise::cli::Split(argc, argv);
  if (arguments.is_serve) return reprise::cli::Serve(arguments.serve);
  return reprise::cli::Main(std::move(arguments)).Run();
}
