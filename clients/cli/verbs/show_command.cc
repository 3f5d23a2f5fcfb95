// SPDX-License-Identifier: Apache-2.0
//
// reprise show RUN|PLAN|FILE: what is at the peak, and what a plan does about
// it. Files are read here; runs and plans come from the server.
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/exit_code.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/open_page.h"
#include "clients/cli/verbs/show_file.h"
#include "clients/cli/verbs/show_stored.h"

namespace reprise::cli {
namespace {

class ShowCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "show", "Show a run, a plan or a file: peak, storages, decisions");
    verb.Add("WHAT", what_,
             "A run id (or its beginning, or \"latest\"), a plan id, "
             "or a file: step graph or plan",
             {.required = true, .completes = Completes::kRuns});
    verb.Flag("--open,!--no-open", open_, "Open the page of the run");
    verb.Footer(
        "Example:\n  reprise show latest\n  reprise show resnet.plan.json");
  }

  int Run(const Globals& globals, Console& console) override {
    if (LooksLikeFile()) {
      if (open_) {
        return console.UsageError(
            StrCat(what_, ": --open shows runs; a file has no page"));
      }
      return ShowFile(what_, globals, console);
    }
    const auto client = ServerClient::ConnectOrStart(globals);
    if (!client.ok()) {
      return client.status().code() == Code::kInvalidArgument
                 ? console.UsageError(client.status().message())
                 : console.Error(client.status());
    }
    return ShowStored(what_, open_, *client, globals, console);
  }

 private:
  // Returns whether it is an existing path, or can only be one.
  bool LooksLikeFile() const {
    return Exists(what_) || what_.find('/') != std::string::npos ||
           what_.find('.') != std::string::npos;
  }

  std::string what_;
  bool open_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeShowCommand() {
  return std::make_unique<ShowCommand>();
}

}  // namespace reprise::cli
