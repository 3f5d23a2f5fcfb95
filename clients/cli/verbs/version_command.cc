// SPDX-License-Identifier: Apache-2.0
//
// reprise version: prints the version.
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"

namespace reprise::cli {
namespace {

class VersionCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb("version", "Print the version");
    verb.Footer("Example:\n  reprise version --json");
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
