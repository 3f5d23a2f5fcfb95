// SPDX-License-Identifier: Apache-2.0
//
// reprise fit command...: starts a job, and asks its process for the largest
// inputs that fit, when it is about to train for the first time. The process
// answers into a file (clients/python/src/reprise/torch/session/fit_asked.py)
// and ends there, before its first step.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/budget.h"
#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/private_daemon.h"
#include "clients/cli/verbs/job.h"

namespace reprise::cli {
namespace {

constexpr int64_t kLargestAnswer = 1 << 20;

// The folder for the answer, removed with what is in it.
struct AnswerFolder {
  ~AnswerFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

class FitCommand : public Command {
 public:
  explicit FitCommand(const std::vector<std::string>& job) : job_(job) {}

  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "fit", "Tell how large the inputs of a job may be, before it trains");
    verb.Add(
        "--budget,-b", budget_,
        "8GiB, 8GB, bytes, 90% of the device's memory, or fit: what is free",
        {.shows_default = true});
    verb.Add(
        "--dimension,-d", dimension_,
        "The dimension of the inputs that grows: 0 is the batch, 1 often the "
        "length of a sequence",
        {.shows_default = true, .range = {{0, 7}}});
    verb.Footer(
        "The program runs until its model is called for training for the first "
        "time, and\nends there with exit code 0. Nothing is trained: the "
        "answer is an estimate, from\nshapes. Exits with 3 if no size fits.\n\n"
        "Example:\n  reprise fit --budget 20GiB python train.py");
  }

  int Run(const Globals& globals, Console& console) override {
    if (const auto wrong = Wrong()) return console.UsageError(*wrong);
    if (const Status program = CheckProgram(job_[0]); !program.ok()) {
      return console.Fail(ExitCodeWithout(program), program.message());
    }
    StatusOr<std::string> made = NewFolder("reprise-fit");
    if (!made.ok()) return console.Error(made.status());
    const AnswerFolder folder{*std::move(made)};
    const std::string file = folder.path + "/answer.json";
    const StatusOr<Daemon> daemon = EnsureDaemon();
    if (!daemon.ok()) return console.Error(daemon.status());
    Variables environment = Attached(daemon->socket);
    environment.emplace_back("REPRISE_FIT_TO", file);
    environment.emplace_back("REPRISE_FIT_DIMENSION", StrCat(dimension_));
    environment.emplace_back("REPRISE_BUDGET", budget_);
    const StatusOr<JobResult> result = RunJob(job_, environment);
    if (!result.ok()) {
      StopDaemon(*daemon);
      return console.Error(result.status());
    }
    const StatusOr<std::string> answer = ReadFile(file, kLargestAnswer);
    if (answer.ok()) return Report(*answer, globals.json, console);
    // A private daemon to which no job ever connected would not exit by itself
    // soon.
    StopDaemon(*daemon);
    return console.Fail(
        result->exit_code == 0 ? kFailed : result->exit_code,
        StrCat(
            "fit: the job ended with exit code ", result->exit_code,
            ", and no process of it was seen to train a PyTorch model, called "
            "as model(inputs)"));
  }

 private:
  // What is wrong with the flags; nothing if nothing is.
  std::optional<std::string> Wrong() const {
    if (job_.empty()) {
      return "fit: no command; write it behind the flags, as in `reprise fit "
             "python train.py`";
    }
    const StatusOr<Budget> budget = ParseBudget(budget_);
    if (!budget.ok()) return budget.status().message();
    if (budget->kind == Budget::Kind::kDynamicFraction) {
      return StrCat("budget \"", budget_,
                    "\": a share of a step does not say how much memory there "
                    "is; write 20GiB, 90% or fit");
    }
    return std::nullopt;
  }

  static int Report(const std::string& answer, bool as_json, Console& console) {
    const auto read = nlohmann::json::parse(answer, nullptr, false);
    if (!read.is_object() || !read.contains("why")) {
      return console.Fail(kFailed,
                          "fit: the job wrote an answer that is not one");
    }
    if (const auto why = read.value("why", ""); !why.empty()) {
      return console.Fail(kFailed, StrCat("fit: ", why));
    }
    const auto found = read.value("fit", nlohmann::json::object());
    if (as_json) {
      console.Raw(found.dump(2) + "\n");
    } else {
      std::istringstream text(read.value("text", ""));
      for (std::string line; std::getline(text, line);) console.Line(line);
    }
    return found.value("sizes", nlohmann::json::array()).empty() ? kNoPlan
                                                                 : kDone;
  }

  const std::vector<std::string>& job_;
  std::string budget_ = "fit";
  uint32_t dimension_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeFitCommand(const std::vector<std::string>& job) {
  return std::make_unique<FitCommand>(job);
}

}  // namespace reprise::cli
