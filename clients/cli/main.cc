// SPDX-License-Identifier: Apache-2.0
//
// reprise: the command. Parses the arguments, finds the verb and runs it. Each
// verb has a file of its own; docs/command.md describes what all verbs have in
// common (streams, --json, exit codes).
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/typed_words.h"

namespace reprise::cli {
namespace {

// The arguments, divided into ours and those of the job or the server.
struct Arguments {
  std::vector<std::string> own;
  std::vector<std::string> job;    // of `run`
  bool has_dashes = false;         // a "--" came before `job`
  std::vector<std::string> serve;  // after `serve`
  bool is_serve = false;
};

Arguments Split(std::vector<std::string> words) {
  Arguments out;
  // `reprise help plan` is `reprise plan --help`.
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.resize(std::min<size_t>(words.size(), 1));
    words.emplace_back("--help");
  }
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (*word == "--") {
      out.has_dashes = true;
      out.job.assign(word + 1, words.end());
      return out;
    }
    if (*word == "serve" && out.own.empty()) {
      out.is_serve = true;
      out.serve.assign(word + 1, words.end());
      return out;
    }
    out.own.push_back(*word);
  }
  return out;
}

// Run ids that completion offers: the newest ones.
constexpr uint32_t kOfferedRuns = 50;

class Main {
 public:
  explicit Main(Arguments arguments) : arguments_(std::move(arguments)) {
    Verb& all = line_.everywhere();
    all.Add("--server", globals_.server,
            "HOST:PORT or https://HOST:PORT of the server "
            "(REPRISE_SERVER, else the one that "
            "runs here)");
    all.Add("--token-file", globals_.token_file,
            "File of the server's token (REPRISE_TOKEN_FILE, else the "
            "one of the server that runs here)");
    all.Add("--ca", globals_.ca,
            "CA of a server over https, in PEM (REPRISE_CA)");
    all.Add("--cert", globals_.certificate,
            "Certificate of this client, for such a server that asks for "
            "one (REPRISE_CERT)");
    all.Add("--key", globals_.key, "Key of --cert (REPRISE_KEY)");
    all.Flag("--json,!--no-json", globals_.json, "Print JSON instead of text");
    all.Flag("--quiet,-q,!--no-quiet", globals_.quiet,
             "No progress, no remarks, no colour");
    all.Flag("--no-color", globals_.no_color, "No colour (NO_COLOR)");
    all.Add("--completion", completion_,
            "Print the completion script for bash, zsh or fish",
            {.offers = {"bash", "zsh", "fish"}});
    all.Footer(
        "Exit codes: 0 done, 1 failed, 2 usage, 3 no plan fits, 4 no server,\n"
        "5 timed out with nothing, 130 interrupted.\n\n"
        "Example:\n  reprise plan resnet.graph.json --budget 8GiB");

    commands_.push_back(MakePlanCommand());
    commands_.push_back(MakeSweepCommand());
    commands_.push_back(MakeExplainCommand());
    commands_.push_back(MakeVerifyCommand());
    commands_.push_back(MakeRunCommand(arguments_.job));
    commands_.push_back(MakeFitCommand(arguments_.job));
    commands_.push_back(MakeShowCommand());
    commands_.push_back(MakeRunsCommand());
    commands_.push_back(MakeDiffCommand());
    commands_.push_back(MakeImportCommand());
    commands_.push_back(MakeExportCommand());
    commands_.push_back(MakeApplyCommand());
    commands_.push_back(MakeWindowCommand());
    commands_.push_back(MakeDoctorCommand());
    commands_.push_back(MakeServeCommand());
    commands_.push_back(MakeStatusCommand());
    commands_.push_back(MakeRmCommand());
    for (const auto& command : commands_) command->Define(line_);
    TakeJob();
  }

  int Run() {
    const Parsed parsed = line_.Parse(arguments_.own);
    Console console(globals_);
    int exit_code = kDone;
    if (parsed.kind == Parsed::Kind::kHelp) {
      const std::string unknown = FirstUnknown(line_, Typed(), arguments_.own);
      if (!unknown.empty()) return OnWrongUsage(unknown, console);
      console.Raw(line_.Help(Typed()));
    } else if (parsed.kind == Parsed::Kind::kVersion) {
      console.Line("reprise " REPRISE_VERSION);
    } else if (parsed.kind == Parsed::Kind::kWrong) {
      return OnWrongUsage(parsed.error, console);
    } else if (completion_ == "words") {
      PrintOffer(console);
    } else if (!completion_.empty()) {
      const auto script = CompletionScript(completion_);
      if (!script.ok()) return console.UsageError(script.status().message());
      console.Raw(*script);
    } else if (parsed.kind == Parsed::Kind::kNoVerb) {
      console.Raw(line_.Help(nullptr));
      return console.UsageError("no command; see the list above");
    } else {
      exit_code = RunVerb(console);
    }
    if (!console.Flush()) {
      return console.Fail(kFailed,
                          "stdout: cannot be written; is the disk full?");
    }
    return exit_code;
  }

 private:
  // Returns the verb that was typed, for its help and its errors; or null.
  const Verb* Typed() const {
    for (const auto& verb : line_.verbs()) {
      for (const std::string& word : arguments_.own) {
        if (word == verb->name()) return verb.get();
      }
    }
    return nullptr;
  }

  // Moves the words of a job that was written without "--".
  void TakeJob() {
    std::vector<std::string>& own = arguments_.own;
    const size_t begins = JobBegins(line_, own);
    if (begins == own.size()) return;
    const auto first = own.begin() + static_cast<std::ptrdiff_t>(begins);
    std::vector<std::string> job(first, own.end());
    own.erase(first, own.end());
    // A later "--" is the job's.
    if (arguments_.has_dashes) job.emplace_back("--");
    job.insert(job.end(), arguments_.job.begin(), arguments_.job.end());
    arguments_.job = std::move(job);
  }

  int OnWrongUsage(const std::string& why, Console& console) const {
    const Verb* typed = Typed();
    const std::string verb = typed == nullptr ? "" : " " + typed->name();
    // The parser may complain of what is missing because of a misspelt flag.
    const std::string unknown = FirstUnknown(line_, typed, arguments_.own);
    return console.UsageError(StrCat(unknown.empty() ? why : unknown,
                                     "; see `reprise", verb, " --help`"));
  }

  int RunVerb(Console& console) {
    if (arguments_.has_dashes && !TakesJob(line_.chosen()->name())) {
      return console.UsageError(
          "`--` belongs to `reprise run` and `reprise fit`");
    }
    for (size_t i = 0; i < commands_.size(); ++i) {
      if (line_.verbs()[i].get() == line_.chosen()) {
        return commands_[i]->Run(globals_, console);
      }
    }
    return kDone;
  }

  // Prints what completion scripts offer, a word a line; ":files": files, too.
  // Of runs it is "latest" alone if no server answers, since a key press must
  // not start one.
  void PrintOffer(Console& console) const {
    const Offer offer = Offered(line_, arguments_.job);
    for (const std::string& word : offer.words) console.Line(word);
    if (offer.files) console.Line(":files");
    if (!offer.runs) return;
    console.Line("latest");
    const auto client = ServerClient::Connect(globals_);
    if (!client.ok()) return;
    const auto runs = client->ListRuns(kOfferedRuns);
    if (!runs.ok()) return;
    for (const v1::Run& run : runs->runs()) console.Line(run.run_id());
  }

  Arguments arguments_;
  Globals globals_;
  std::string completion_;
  CommandLine line_{"reprise",
                    "Fit a training job into a memory budget with the least "
                    "extra time.",
                    "reprise " REPRISE_VERSION};
  std::vector<std::unique_ptr<Command>> commands_;
};

}  // namespace
}  // namespace reprise::cli

int main(int argc, char** argv) {
  // If the reader is gone (`| head`), that is an error to report, not a crash.
  std::signal(SIGPIPE, SIG_IGN);
  reprise::cli::Arguments arguments =
      reprise::cli::Split({argv + 1, argv + argc});
  if (arguments.is_serve) return reprise::cli::Serve(arguments.serve);
  return reprise::cli::Main(std::move(arguments)).Run();
}
