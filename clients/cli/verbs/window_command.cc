// SPDX-License-Identifier: Apache-2.0
//
// reprise window RUN: asks a running job to record a few steps, and waits until
// they are stored.
#include <chrono>
#include <string>
#include <thread>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/plan_options.h"
#include "clients/cli/server/server_client.h"

namespace reprise::cli {
namespace {

using Clock = std::chrono::steady_clock;

class WindowCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb =
        line.AddVerb("window", "Record a few steps of a running job, now");
    verb.Add("RUN", run_, "A run id, its beginning, or \"latest\"",
             {.required = true, .completes = Completes::kRuns});
    verb.Add("--steps,-n", steps_, "How many steps",
             {.shows_default = true, .range = {{1, 1000}}});
    verb.Add("--at", at_, "Not before this step (the next one)");
    verb.Add("--wait", patience_s_,
             "Seconds to wait for the first of its steps",
             {.shows_default = true, .range = {{0.0, 86400.0}}});
    verb.Flag("!--no-wait", wait_, "Ask, and do not wait");
    verb.Footer(
        "Recording costs time while it lasts; the job goes on as before after "
        "it.\nExits with 5 when nothing was recorded in time.\n\n"
        "Example:\n  reprise window latest --steps 5");
  }

  int Run(const Globals& globals, Console& console) override {
    const auto client = ServerClient::Connect(globals);
    if (!client.ok()) return console.ConnectError(client.status());
    const auto run = client->GetRun(run_);
    if (!run.ok()) return console.Error(run.status());
    const auto asked = client->StartWindow(run->run_id(), steps_, at_);
    if (!asked.ok()) return console.Error(asked.status());
    if (!wait_) return Report(*asked, globals, console);
    return Wait(*client, *run, globals, console);
  }

 private:
  int Wait(const ServerClient& client, const v1::Run& run,
           const Globals& globals, Console& console) {
    const CatchInterrupt catch_interrupt;
    auto moved_at = Clock::now();
    uint32_t recorded = 0;
    while (true) {
      const auto now = client.GetRun(run.run_id());
      if (!now.ok()) return console.Error(now.status());
      const v1::WindowStatus& window = now->window();
      if (window.state() == v1::WINDOW_STATE_DONE ||
          window.state() == v1::WINDOW_STATE_REFUSED) {
        return Report(window, globals, console);
      }
      if (window.recorded() > recorded) {
        recorded = window.recorded();
        moved_at = Clock::now();
      }
      if (CatchInterrupt::Asked()) {
        return console.Error(
            Cancelled("interrupted; the job records its steps all the same"));
      }
      // No time limit while the step is still far away.
      if (window.at_step() <= now->steps() + 1 &&
          Clock::now() - moved_at >
              std::chrono::duration<double>(patience_s_)) {
        return console.Error(DeadlineExceeded(
            StrCat("run ", run.run_id(), ": ", recorded, " of ", window.steps(),
                   " steps were recorded, and then none for ",
                   static_cast<int64_t>(patience_s_),
                   " s; does the job take steps? see `reprise show ",
                   run.run_id(), "`")));
      }
      console.Progress(
          StrCat("recorded ", recorded, " of ", window.steps(), " steps"));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  static int Report(const v1::WindowStatus& window, const Globals& globals,
                    Console& console) {
    if (globals.json) console.Line(ProtoToJson(window));
    switch (window.state()) {
      case v1::WINDOW_STATE_REFUSED:
        return console.Fail(kFailed, window.why());
      case v1::WINDOW_STATE_DONE:
        if (!globals.json) {
          console.Line(StrCat("recorded ", window.recorded(), " steps, ",
                              window.first_step(), " to ", window.last_step()),
                       Tone::kGood);
          if (!window.why().empty()) console.Line("  " + window.why());
        }
        return kDone;
      default:
        if (!globals.json) {
          console.Line(StrCat("asked for ", window.steps(), " steps",
                              window.at_step() > 0
                                  ? StrCat(" from step ", window.at_step())
                                  : std::string()));
        }
        return kDone;
    }
  }

  std::string run_;
  uint32_t steps_ = 3;
  uint64_t at_ = 0;
  double patience_s_ = 60;
  bool wait_ = true;
};

}  // namespace

std::unique_ptr<Command> MakeWindowCommand() {
  return std::make_unique<WindowCommand>();
}

}  // namespace reprise::cli
