// SPDX-License-Identifier: Apache-2.0
//
// reprise runs: the runs of the server, newest first.
#include <optional>
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {
namespace {

constexpr int kDefaultShownRuns = 20;

// The owner where there are several.
std::string LineOf(const v1::Run& run, bool with_owner) {
  const bool named = run.name() != run.run_id();
  return StrCat("  ", LocalTime(run.started_ns()), "  ", run.run_id(),
                with_owner ? StrCat("  ", run.owner().empty() ? "nobody known"
                                                              : run.owner())
                           : "",
                named ? StrCat("  ", run.name()) : "", "  ", run.ending(), ", ",
                run.steps(), " steps");
}

class RunsCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb("runs", "List the runs of the server");
    verb.Flag("--mine", mine_,
              "Only those that you sent, where several users send to it");
    verb.Add("--limit", limit_, "How many runs, newest first",
             {.range = {{1, 1000}}});
    verb.Footer("Example:\n  reprise runs --mine --limit 5");
  }

  int Run(const Globals& globals, Console& console) override {
    const auto client = ServerClient::Connect(globals);
    if (!client.ok()) return console.ConnectError(client.status());
    const auto runs = client->ListRuns(
        static_cast<uint32_t>(limit_.value_or(kDefaultShownRuns)), mine_);
    if (!runs.ok()) return console.Error(runs.status());
    if (globals.json) {
      console.Line(ProtoToJson(*runs));
      return kDone;
    }
    for (const v1::Run& run : runs->runs()) {
      console.Line(LineOf(run, runs->owners() > 1));
    }
    if (runs->total() == 0) {
      console.Line(mine_ ? "you sent no run yet" : "there is no run yet");
    } else if (static_cast<uint32_t>(runs->runs_size()) < runs->total()) {
      console.Note(StrCat("these are the newest ", runs->runs_size(), " of ",
                          runs->total(), " runs; see --limit"));
    }
    return kDone;
  }

 private:
  bool mine_ = false;
  std::optional<int> limit_;
};

}  // namespace

std::unique_ptr<Command> MakeRunsCommand() {
  return std::make_unique<RunsCommand>();
}

}  // namespace reprise::cli
