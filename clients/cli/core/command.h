// SPDX-License-Identifier: Apache-2.0
//
// A verb of the command line: `plan`, `sweep`, ... Each is a class in a file of
// its own; main.cc collects them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/options.h"

namespace reprise::cli {

class Command {
 public:
  virtual ~Command() = default;

  // Adds the subcommand with its options, help and example. Called once; the
  // options write into members of this object.
  virtual void Define(CommandLine& line) = 0;

  // Returns the exit code.
  virtual int Run(const Globals& globals, Console& console) = 0;
};

std::unique_ptr<Command> MakePlanCommand();
std::unique_ptr<Command> MakeSweepCommand();
// `job` is what follows "--". It is never parsed, so a flag of the job cannot
// be mistaken for one of ours.
std::unique_ptr<Command> MakeRunCommand(const std::vector<std::string>& job);
std::unique_ptr<Command> MakeFitCommand(const std::vector<std::string>& job);
std::unique_ptr<Command> MakeShowCommand();
std::unique_ptr<Command> MakeRunsCommand();
std::unique_ptr<Command> MakeServeCommand();
std::unique_ptr<Command> MakeStatusCommand();
std::unique_ptr<Command> MakeDiffCommand();
std::unique_ptr<Command> MakeExplainCommand();
std::unique_ptr<Command> MakeVerifyCommand();
std::unique_ptr<Command> MakeImportCommand();
std::unique_ptr<Command> MakeExportCommand();
std::unique_ptr<Command> MakeApplyCommand();
std::unique_ptr<Command> MakeWindowCommand();
std::unique_ptr<Command> MakeDoctorCommand();
std::unique_ptr<Command> MakeRmCommand();

// Runs the server in this process until it is stopped. `flags` are those of
// reprised. Returns the exit code.
int Serve(std::vector<std::string> flags);

// Shell completion of commands, options, option values from a fixed list, files
// and run ids. The scripts ask `reprise --completion words -- TYPED...`.

// What a shell may complete a word with.
struct Offer {
  std::vector<std::string> words = {};
  bool runs = false;   // "latest" and run ids, too
  bool files = false;  // and files
};

// Returns what fits the last of the words that were typed behind the command.
Offer Offered(const CommandLine& line, std::span<const std::string> words);

// Returns the script for `shell`. INVALID_ARGUMENT for a shell other than bash,
// zsh and fish.
StatusOr<std::string> CompletionScript(const std::string& shell);

}  // namespace reprise::cli
