// SPDX-License-Identifier: Apache-2.0
//
// reprise apply RUN --budget B: plans the step of a running job within another
// budget and sends the plan to the job.
#include <string>

#include "base/budget.h"
#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/server_client.h"
#include "formats/convert/sentence.h"

namespace reprise::cli {
namespace {

class ApplyCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb("apply", "Send another budget to a running job");
    verb.Add("RUN", run_, "A run id, its beginning, or \"latest\"",
             {.required = true, .completes = Completes::kRuns});
    verb.Add("--budget,-b", budget_,
             "8GiB, 8GB, bytes, or 0.5x (static memory plus half of the "
             "dynamic memory)",
             {.required = true, .environment = "REPRISE_BUDGET"});
    verb.Footer(
        "The job keeps running and takes the plan between two steps; one "
        "without a\nplan captures its next step first. Eager PyTorch jobs of "
        "one "
        "process can; others\n(torch.compile, JAX, TensorFlow, several ranks) "
        "refuse, and it is said why.\nExits with 3 when no plan fits: then "
        "nothing was sent, and the plan stays.\n\n"
        "Example:\n  reprise apply latest --budget 0.5x");
  }

  int Run(const Globals& globals, Console& console) override {
    const StatusOr<Budget> budget = ParseBudget(budget_);
    if (!budget.ok()) return console.UsageError(budget.status().message());
    const auto client = ServerClient::Connect(globals);
    if (!client.ok()) return console.ConnectError(client.status());
    const auto run = client->GetRun(run_);
    if (!run.ok()) return console.Error(run.status());
    const auto plan = client->ApplyBudget(run->run_id(), budget_, console);
    if (plan.ok()) return Report(*run, *plan, globals, console);
    const int code = console.Error(plan.status());
    if (plan.status().code() == Code::kFailedPrecondition) {
      console.Note(StrCat("\nNext:  reprise run --budget ", budget_,
                          " -- python train.py   start it again with this "
                          "budget"));
    }
    return code;
  }

 private:
  // Says what was sent, or why nothing was.
  int Report(const v1::Run& run, const v1::Plan& plan, const Globals& globals,
             Console& console) const {
    if (globals.json) {
      console.Line(ProtoToJson(plan));
    } else {
      console.Line(plan.sentence(), plan.feasible() ? Tone::kGood : Tone::kBad);
    }
    if (!plan.feasible()) {
      const int64_t known = plan.infeasible().smallest_known_bytes();
      if (!globals.json) {
        console.Line("  nothing was sent; the job goes on as before");
        if (known > 0) {
          console.Note(StrCat("\nNext:  reprise apply ", run_, " --budget ",
                              known, "   ", formats::FormatBytesUp(known),
                              ", the smallest with a known plan"));
        }
      }
      return formats::Undecided(plan) ? kTimedOut : kNoPlan;
    }
    if (globals.json) return kDone;
    const bool planned = !run.plan_id().empty() && run.verdict().feasible();
    console.Line(planned
                     ? "  sent; the job takes it between two steps"
                     : "  sent; the job captures its next step and asks for "
                       "a plan within this budget");
    console.Note(StrCat("\nNext:  reprise show ", run.run_id(),
                        "   see whether it holds"));
    return kDone;
  }

  std::string run_;
  std::string budget_;
};

}  // namespace

std::unique_ptr<Command> MakeApplyCommand() {
  return std::make_unique<ApplyCommand>();
}

}  // namespace reprise::cli
