// SPDX-License-Identifier: Apache-2.0
//
// A verb of the command line: `plan`, `sweep`, ... One class, one file each;
// main.cc collects them.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "clients/cli/console.h"

namespace reprise::cli {

class Command {
 public:
  virtual ~Command() = default;

  // Adds the subcommand with its options, help and example. Called once; the
  // options write into members of this object.
  virtual CLI::App* Define(CLI::App& app) = 0;

  // Returns the exit code.
  virtual int Run(const Globals& globals, Console& console) = 0;
};

std::unique_ptr<Command> MakePlanCommand();
std::unique_ptr<Command> MakeSweepCommand();
// `job` is what stands behind "--": CLI11 never sees it, so that no flag of
// the job is taken for one of ours.
std::unique_ptr<Command> MakeRunCommand(std::vector<std::string> job);
std::unique_ptr<Command> MakeShowCommand();
std::unique_ptr<Command> MakeServeCommand();
std::unique_ptr<Command> MakeStatusCommand();
std::unique_ptr<Command> MakeExplainCommand();
std::unique_ptr<Command> MakeVerifyCommand();
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakeImportCommand();
std::unique_ptr<Command> MakeExportCommand();
std::unique_ptr<Command> MakeWindowCommand();
std::unique_ptr<Command> MakeDoctorCommand();
std::unique_ptr<Command> MakeVersionCommand();

}  // namespace reprise::cli
