// SPDX-License-Identifier: Apache-2.0
//
// reprise doctor: checks what works on this machine and what does not, with one
// line per check that says what to do.
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/doctor/doctor.h"

namespace reprise::cli {
namespace {

const char* WordOf(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarning:
      return "warning";
    default:
      return "problem";
  }
}

class DoctorCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb("doctor",
                              "Say what works on this machine, and what to do");
    verb.Add("--python", python_,
             "The Python that trains (that of VIRTUAL_ENV, else the one "
             "that the package is installed in, else python3)",
             {.completes = Completes::kFiles});
    verb.Footer(
        "Exits with 1 when something is broken; what is only missing is a "
        "warning.\n\nExample:\n  reprise doctor\n"
        "  reprise doctor --python .venv/bin/python --json");
  }

  int Run(const Globals& globals, Console& console) override {
    const bool named = !python_.empty();
    // Everything that forks must run before gRPC starts its threads.
    const PythonFacts python = AskPython(Python());
    std::vector<Check> checks = {
        {Health::kOk, "reprise", "version " REPRISE_VERSION, ""}};
    const auto add = [&](std::vector<Check> more) {
      for (Check& check : more) checks.push_back(std::move(check));
    };
    add(CheckHost());
    add(CheckDevices());
    add(CheckCupti(python));
    checks.push_back(CheckAgent(python));
    if (named && python.path.empty() && python.late.empty()) {
      checks.push_back(
          {Health::kProblem, "python",
           StrCat(python_, ": is not a Python interpreter that works"),
           "name an interpreter of Python 3.10 or newer"});
    } else {
      add(CheckPython(python));
    }
    add(CheckDaemon(globals));
    return globals.json ? PrintJson(checks, console) : Print(checks, console);
  }

 private:
  std::string Python() const {
    if (!python_.empty()) return python_;
    if (const char* environment = std::getenv("VIRTUAL_ENV")) {
      const std::string own = StrCat(std::string(environment), "/bin/python");
      if (Exists(own)) return own;
    }
    // The Python of the installation whose console script started this command.
    if (const char* installed = std::getenv("REPRISE_PYTHON")) return installed;
    return "python3";
  }

  static bool Broken(const std::vector<Check>& checks) {
    for (const Check& check : checks) {
      if (check.health == Health::kProblem) return true;
    }
    return false;
  }

  static int Print(const std::vector<Check>& checks, Console& console) {
    size_t problems = 0;
    size_t warnings = 0;
    for (const Check& check : checks) {
      problems += check.health == Health::kProblem;
      warnings += check.health == Health::kWarning;
      std::string line = WordOf(check.health);
      line.resize(9, ' ');
      std::string name = check.name;
      name.resize(std::max<size_t>(name.size() + 1, 13), ' ');
      console.Line(StrCat(line, name, check.found),
                   check.health == Health::kOk        ? Tone::kPlain
                   : check.health == Health::kProblem ? Tone::kBad
                                                      : Tone::kFaint);
      if (!check.advice.empty()) {
        console.Line(StrCat(std::string(22, ' '), "-> ", check.advice),
                     Tone::kFaint);
      }
    }
    console.Line(StrCat(problems, problems == 1 ? " problem, " : " problems, ",
                        warnings, warnings == 1 ? " warning" : " warnings"),
                 problems > 0 ? Tone::kBad : Tone::kGood);
    return Broken(checks) ? kFailed : kDone;
  }

  static int PrintJson(const std::vector<Check>& checks, Console& console) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Check& check : checks) {
      list.push_back({{"check", check.name},
                      {"health", WordOf(check.health)},
                      {"found", check.found},
                      {"advice", check.advice}});
    }
    const nlohmann::ordered_json json = {{"broken", Broken(checks)},
                                         {"checks", list}};
    console.Line(json.dump(-1, ' ', false,
                           nlohmann::ordered_json::error_handler_t::replace));
    return Broken(checks) ? kFailed : kDone;
  }

  std::string python_;
};

}  // namespace

std::unique_ptr<Command> MakeDoctorCommand() {
  return std::make_unique<DoctorCommand>();
}

}  // namespace reprise::cli
