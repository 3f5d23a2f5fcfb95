// SPDX-License-Identifier: Apache-2.0
//
// reprise version: prints the version.
#include <string>

#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/exit_code.h"

namespace reprise::cli {
namespace {

class VersionCommand : public Command {
 public:
  CLI::App* Define(CLI::App& app) override {
    CLI::App* sub = app.add_subcommand("version", "Print the version");
    sub->footer("Example:\n  reprise version --json");
    return sub;
  }
  int Run(const Globals& globals, Console& console) override {
    if (globals.json) {
      console.Line("{\"name\": \"reprise\", \"version\": \"" REPRISE_VERSION
                   "\"}");
    } else {
      console.Line("reprise " REPRISE_VERSION);
    }
    return kDone;
  }
};

}  // namespace

std::unique_ptr<Command> MakeVersionCommand() {
  return std::make_unique<VersionCommand>();
}

}  // namespace reprise::cli
