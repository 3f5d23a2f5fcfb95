// SPDX-License-Identifier: Apache-2.0
//
// reprise serve: runs reprised in the foreground. Its flags are parsed by
// reprised itself, so that they cannot differ.
#include <memory>
#include <string>
#include <vector>

#include "clients/cli/core/command.h"
#include "server/daemon/daemon.h"

namespace reprise::cli {
namespace {

class ServeCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    // Only listed here: main.cc passes everything after `serve` on.
    Verb& verb = line.AddVerb(
        "serve", "Run the server in the foreground (the flags of reprised)");
    verb.Footer("Example:\n  reprise serve --listen 127.0.0.1:7070");
  }
  int Run(const Globals&, Console&) override { return Serve({}); }
};

}  // namespace

int Serve(std::vector<std::string> flags) {
  std::string program = "reprise serve";
  std::vector<char*> argv = {program.data()};
  for (std::string& flag : flags) argv.push_back(flag.data());
  argv.push_back(nullptr);
  return server::RunServer(static_cast<int>(argv.size()) - 1, argv.data());
}

std::unique_ptr<Command> MakeServeCommand() {
  return std::make_unique<ServeCommand>();
}

}  // namespace reprise::cli
