// SPDX-License-Identifier: Apache-2.0
//
// reprise run -- command...: runs a job with the agent's environment prepared
// (run id, budget, socket of a daemon) and reports the result at the end, on
// stderr, because stdout belongs to the job. The exit code is the job's own. If
// something is missing (a daemon, a server, the injection variable), one line
// says so, and the job runs anyway.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/budget.h"
#include "base/str_cat.h"
#include "base/uuid.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/private_daemon.h"
#include "clients/cli/server/runtime_paths.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/verbs/job.h"
#include "clients/cli/verbs/run_facts.h"

namespace reprise::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr auto kFirstRankPatience = seconds(10);

// Waits until the first rank has started a daemon. A private daemon does not
// exit before the command that started it, and that must be the rank that asks
// for the result at the end.
void AwaitFirstRank() {
  const auto limit = steady_clock::now() + kFirstRankPatience;
  while (!DaemonAnswers(AgentSocket()) && !DaemonAnswers(PrivateSocket()) &&
         steady_clock::now() < limit) {
    std::this_thread::sleep_for(milliseconds(20));
  }
}

// The daemon that receives the job's records, and the server to ask for its
// result.
struct Watchers {
  Daemon daemon;
  ServerClient client;
};

// Returns the daemon and the server; restores REPRISE_SOCKET on failure.
StatusOr<Watchers> TryWatchers(const Globals& globals) {
  ASSIGN_OR_RETURN(const Daemon daemon, EnsureDaemon());
  const char* const named = getenv("REPRISE_SOCKET");
  const std::optional<std::string> before =
      named == nullptr ? std::nullopt : std::optional<std::string>(named);
  setenv("REPRISE_SOCKET", daemon.socket.c_str(), 1);
  StatusOr<ServerClient> client = ServerClient::Connect(globals);
  if (client.ok()) return Watchers{daemon, *std::move(client)};
  StopDaemon(daemon);
  if (before) {
    setenv("REPRISE_SOCKET", before->c_str(), 1);
  } else {
    unsetenv("REPRISE_SOCKET");
  }
  return client.status();
}

// Connects before the job starts, because a private daemon that another command
// started may exit soon after it. A daemon that is just exiting may still
// answer on its socket while its server does not; the next one is ready
// shortly. `after` the job, when its own daemon is gone, an exiting one may also
// hold its folder for another moment.
StatusOr<Watchers> AwaitWatchers(const Globals& globals, bool after) {
  const auto limit = steady_clock::now() + seconds(after ? 5 : 10);
  while (true) {
    StatusOr<Watchers> watchers = TryWatchers(globals);
    const bool may_come =
        after || (watchers.status().code() == Code::kUnavailable &&
                  !NamesServer(globals));
    if (watchers.ok() || !may_come || steady_clock::now() > limit) {
      return watchers;
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
}

const char* EndWord(v1::RunState state) {
  switch (state) {
    case v1::RUN_STATE_RUNNING:
      return " is still running";
    case v1::RUN_STATE_KILLED:
      return " was killed";
    case v1::RUN_STATE_FAILED:
      return " failed";
    default:
      return " ended";
  }
}

// Explains it as far as it is known here, outside the job. `has_budget`: the
// job was given one.
std::string WhyNeverAttached(bool has_budget) {
  if (Environment("REPRISE_DISABLE") == "1") return "REPRISE_DISABLE=1";
  if (LaunchFolder().empty()) {
    return "the Python package is not beside this command; set REPRISE_LAUNCH "
           "to its folder reprise/launch, or call reprise.auto(model) where "
           "the model is trained";
  }
  return StrCat(
      "no process of it was seen to train a PyTorch model, called as "
      "model(inputs), or a Keras model under a plan",
      has_budget ? "" : ", which on JAX and TensorFlow needs --budget",
      "; call reprise.auto(model), reprise.jax.auto or reprise.tensorflow.auto "
      "where it is trained");
}

bool IsOutOfMemory(const v1::ShownMoment& shown) {
  return shown.moment().reason() == v1::MOMENT_REASON_OUT_OF_MEMORY;
}

bool IsOnCpu(const v1::Run& run) {
  for (const v1::SessionReport& session : run.sessions()) {
    for (const v1::Capability& one : session.capabilities()) {
      if (one.name() == "device" && one.value() == "cpu") return true;
    }
  }
  return false;
}

// Words as they are typed in a shell.
std::string Typed(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    const bool plain =
        !word.empty() && word.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyz"
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789_./=:,+-@%") == std::string::npos;
    std::string quoted = word;
    for (size_t at = quoted.find('\''); at != std::string::npos;
         at = quoted.find('\'', at + 4)) {
      quoted.replace(at, 1, "'\\''");
    }
    if (!line.empty()) line += ' ';
    line += plain ? word : StrCat("'", quoted, "'");
  }
  return line;
}

class RunCommand : public Command {
 public:
  explicit RunCommand(const std::vector<std::string>& job) : job_(job) {}

  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "run", "Run a job with the agent attached; print the run id");
    verb.Add("--budget,-b", budget_,
             "8GiB, 8GB, bytes, 90%, fit or 0.5x; the job reads it as "
             "REPRISE_BUDGET",
             {.environment = "REPRISE_BUDGET"});
    verb.Add("--host-budget", host_budget_,
             "8GiB, 8GB or bytes of host memory that plans may use, or auto: "
             "half of what is free; the job reads it as REPRISE_HOST_BUDGET",
             {.environment = "REPRISE_HOST_BUDGET"});
    verb.Add("--name", name_, "Name of the run, for people");
    verb.Flag("--keep-injection", keep_injection_,
              "Leave CUDA_INJECTION64_PATH as it is");
    verb.Footer(
        "A PyTorch program needs no change: its models are found when they "
        "are trained.\nOne that calls reprise.auto(model) itself decides "
        "itself. Exits with the job's own code.\n"
        "The job begins at the first word that is no flag, or behind --.\n\n"
        "Example:\n  reprise run --budget 0.5x python train.py --epochs 3");
  }

  int Run(const Globals& globals, Console& console) override {
    if (job_.empty()) {
      return console.UsageError(
          "run: no command; write it behind the flags, as in `reprise run "
          "python train.py`");
    }
    if (!budget_.empty()) {
      const StatusOr<Budget> budget = ParseBudget(budget_);
      if (!budget.ok()) return console.UsageError(budget.status().message());
    }
    const bool sized =
        !host_budget_.empty() && host_budget_ != "0" && host_budget_ != "auto";
    if (sized) {
      const StatusOr<Budget> host = ParseBudget(host_budget_);
      if (!host.ok() || host->kind != Budget::Kind::kBytes) {
        return console.UsageError(
            StrCat("--host-budget ", host_budget_.substr(0, 40),
                   ": must be bytes, such as 60GiB, or auto"));
      }
    }
    if (!globals.server.empty()) {
      const auto endpoint = ParseEndpoint(globals.server);
      if (!endpoint.ok())
        return console.UsageError(endpoint.status().message());
    }
    // Before a daemon is started for it, and a page named.
    if (const Status program = CheckProgram(job_[0]); !program.ok()) {
      return console.Fail(ExitCodeWithout(program), program.message());
    }
    console.LeaveStdout();
    // Before any thread is started.
    StatusOr<Variables> slot = Variables{};
    if (!keep_injection_) slot = TakeInjectionSlot();
    // Of several ranks started together, only the first reports.
    const std::optional<Launched> launched = LaunchedTogether();
    const std::string run_id = launched ? launched->run_id : NewUuid();
    const bool speaks = !launched || launched->rank == 0;
    if (!speaks) AwaitFirstRank();
    StatusOr<Watchers> watchers = AwaitWatchers(globals, /*after=*/false);
    if (!watchers.ok()) return RunUnwatched(watchers.status(), console);
    if (!slot.ok()) console.Fail(0, slot.status().message());

    Variables environment = slot.ok() ? *std::move(slot) : Variables{};
    environment.emplace_back("REPRISE_RUN_ID", run_id);
    for (auto& wish : Wishes()) environment.push_back(std::move(wish));
    for (auto& one : Attached(watchers->daemon.socket)) {
      environment.push_back(std::move(one));
    }

    if (speaks) {
      console.Note(StrCat("run ", run_id, "  ",
                          watchers->client.endpoint().Page(
                              "/runs/" + run_id, console.notes_on_terminal())));
    }
    const StatusOr<JobResult> result = RunJob(job_, environment);
    if (!result.ok()) {
      StopDaemon(watchers->daemon);
      return console.Error(result.status());
    }
    if (!speaks) return result->exit_code;
    Daemon next;
    StatusOr<v1::Run> run = AwaitEnd(watchers->client, run_id);
    if (run.status().code() == Code::kUnavailable) {
      // The daemon was started by an earlier job and exited after the last record
      // of ours. Another daemon can report what it stored.
      StatusOr<Watchers> others = AwaitWatchers(globals, /*after=*/true);
      if (others.ok()) {
        next = others->daemon;
        watchers->client = std::move(others->client);
        run = AwaitEnd(watchers->client, run_id);
      }
    }
    if (run.ok()) {
      v1::ProcessEnd end;
      end.set_exit_code(result->exit_code);
      end.set_signal(result->signal);
      // A server of before does not know the call; the run is shown all the same.
      if (watchers->client.ReportEnd(run_id, end).ok()) {
        auto told = watchers->client.GetRun(run_id);
        if (told.ok()) run = std::move(told);
      }
      Report(*run, result->exit_code, watchers->client, globals, console);
    } else if (run.status().code() == Code::kNotFound) {
      // A private daemon to which no job ever connected would not exit by itself
      // soon.
      StopDaemon(watchers->daemon);
      console.Fail(0, StrCat("the job never attached: ",
                             WhyNeverAttached(!budget_.empty())));
    } else {
      console.Error(run.status());
    }
    StopDaemon(next);
    return result->exit_code;
  }

 private:
  // Environment for a job, also one without a daemon, that calls Reprise
  // itself.
  Variables Wishes() const {
    Variables wishes;
    if (!budget_.empty()) wishes.emplace_back("REPRISE_BUDGET", budget_);
    if (!host_budget_.empty()) {
      wishes.emplace_back("REPRISE_HOST_BUDGET", host_budget_);
    }
    if (!name_.empty()) wishes.emplace_back("REPRISE_NAME", name_);
    return wishes;
  }

  // Runs the job as it would run without this command.
  int RunUnwatched(const Status& why, Console& console) const {
    console.Fail(0, StrCat("the job runs without Reprise: ", why.message()));
    const StatusOr<JobResult> result = RunJob(job_, Wishes());
    return result.ok() ? result->exit_code : console.Error(result.status());
  }

  // Waits until the run's last record is stored; returns the run as far as it
  // got.
  static StatusOr<v1::Run> AwaitEnd(const ServerClient& client,
                                    const std::string& run_id) {
    const auto begin = steady_clock::now();
    while (true) {
      StatusOr<v1::Run> run = client.GetRun(run_id);
      const bool over = run.ok() && run->state() != v1::RUN_STATE_RUNNING;
      // A job that never attached will not come any more; a short wait covers a
      // Hello that is still on its way to the store.
      const bool absent = !run.ok() && run.status().code() == Code::kNotFound;
      const auto limit = begin + seconds(absent ? 1 : 15);
      const bool failed = !run.ok() && !absent;
      if (over || failed || steady_clock::now() > limit) return run;
      std::this_thread::sleep_for(milliseconds(50));
    }
  }

  void Report(v1::Run run, int exit_code, const ServerClient& client,
              const Globals& globals, Console& console) const {
    // Now, because a private daemon may exit soon after the job.
    const auto moments = client.GetMoments(run.run_id());
    if (globals.json) {
      if (moments.ok()) *run.mutable_moments() = moments->moments();
      console.Line(ProtoToJson(run));
      return;
    }
    const v1::Verdict& verdict = run.verdict();
    if (!verdict.sentence().empty()) {
      console.Line(verdict.sentence(), ToneOf(verdict));
    } else {
      console.Line(StrCat("run ", run.run_id(), EndWord(run.state()), " after ",
                          run.steps(), " steps without a plan"));
    }
    if (run.state() != v1::RUN_STATE_KILLED && exit_code != 0 &&
        run.verdict().sentence().find("exit code") == std::string::npos) {
      console.Line(StrCat("The job exited with code ", exit_code, "."));
    }
    if (moments.ok()) PrintMoments(*moments, console);
    const bool ran_out =
        moments.ok() && std::any_of(moments->moments().begin(),
                                    moments->moments().end(), IsOutOfMemory);
    // What the job has asked for when its memory ran out, and no step has used.
    const bool would_fit = ran_out && budget_.empty() && verdict.feasible() &&
                           verdict.planned_steps() == 0 &&
                           verdict.budget_bytes() >> 20 > 0;
    if (would_fit) {
      // On a CPU there is no room for what malloc keeps of freed memory.
      const char* const gives_back =
          IsOnCpu(run) ? "env MALLOC_MMAP_THRESHOLD_=1000000 " : "";
      console.Note(StrCat("\nNext:  reprise run --budget ",
                          verdict.budget_bytes() >> 20, "MiB -- ", gives_back,
                          Typed(job_)));
    } else {
      console.Note(StrCat("\nNext:  reprise show ", run.run_id()));
    }
  }

  const std::vector<std::string>& job_;
  std::string budget_, host_budget_;
  std::string name_;
  bool keep_injection_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeRunCommand(const std::vector<std::string>& job) {
  return std::make_unique<RunCommand>(job);
}

}  // namespace reprise::cli
