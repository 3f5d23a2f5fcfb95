// SPDX-License-Identifier: Apache-2.0
//
// A verb of the command line: `plan`, `sweep`, ... Each is a class in a file of
// its own; main.cc collects them.
#pragma once

#include <memory>
#include <string>
#include <vector>

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
std::unique_ptr<Command> MakeServeCommand();
std::unique_ptr<Command> MakeStatusCommand();
std::unique_ptr<Command> MakeDiffCommand();
std::unique_ptr<Command> MakeExplainCommand();
std::unique_ptr<Command> MakeVerifyCommand();
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakeImportCommand();
std::unique_ptr<Command> MakeExportCommand();
std::unique_ptr<Command> MakeApplyCommand();
std::unique_ptr<Command> MakeWindowCommand();
std::unique_ptr<Command> MakeDoctorCommand();
std::unique_ptr<Command> MakeVersionCommand();

}  // namespace reprise::cli
