// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor/doctor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"

namespace reprise::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{10};
// Importing torch from a cold disk takes a while.
constexpr std::chrono::seconds kImportPatience{60};
constexpr size_t kMostOutput = 64 << 10;

// Reads until the other end closes. Returns false if that takes too long.
bool ReadAll(int fd, std::string& out, std::chrono::seconds patience) {
  const auto until = Clock::now() + patience;
  while (out.size() < kMostOutput) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - Clock::now());
    if (left.count() <= 0) return false;
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, static_cast<int>(left.count())) <= 0) return false;
    char some[4096];
    const ssize_t got = read(fd, some, sizeof some);
    if (got <= 0) return got == 0;
    out.append(some, static_cast<size_t>(got));
  }
  return true;
}

// "did not answer within 4 s; the load is 30.1 on 2 processors": on a busy
// machine that proves nothing.
std::string TooLate(std::chrono::seconds patience) {
  double load = 0;
  if (getloadavg(&load, 1) != 1) load = 0;
  const long processors = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
  char shown[32];
  std::snprintf(shown, sizeof shown, "%.1f", load);
  return StrCat("did not answer within ", patience.count(), " s; the load is ",
                shown, " on ", processors,
                processors == 1 ? " processor" : " processors");
}

// Finds distributions and files by name; imports nothing from them.
constexpr auto kQuestion = R"(
import glob, importlib.util, json, os, platform, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
def folders(name):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec else []
cupti = []
for folder in folders("nvidia"):
    cupti += glob.glob(os.path.join(folder, "*", "lib", "libcupti.so*"))
own = folders("reprise")
agent = os.environ.get("REPRISE_AGENT", "")
for folder in own:
    agent = agent or next(iter(glob.glob(os.path.join(folder, "**", "libreprise_agent.so"), recursive=True)), "")
print(json.dumps({
    "version": platform.python_version(),
    "reprise": version("reprise") or ("source" if own else ""),
    "torch": version("torch"), "agent": agent, "libcupti": sorted(cupti)[:16]}))
)";

std::string TextOf(const nlohmann::json& json, const char* key) {
  return json.contains(key) && json[key].is_string()
             ? json[key].get<std::string>()
             : "";
}

// Returns what `python option argument` prints.
std::string Answer(const std::string& python, const char* option,
                   const char* argument, std::chrono::seconds patience) {
  // The outer child limits the time; the inner one is the interpreter.
  return InChild(
      [&]() -> std::string {
        int ends[2];
        if (pipe(ends) != 0) return "";
        const pid_t child = fork();
        if (child == 0) {
          dup2(ends[1], STDOUT_FILENO);
          close(ends[0]);
          close(ends[1]);
          execlp(python.c_str(), python.c_str(), option, argument, nullptr);
          _exit(127);
        }
        close(ends[1]);
        std::string answer;
        if (!ReadAll(ends[0], answer, patience)) kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        return answer;
      },
      patience + std::chrono::seconds(1));
}

// Checks what is compiled for this Python's torch, and what replaces missing
// parts.
std::vector<Check> AskParts(const std::string& python) {
  const auto begin = Clock::now();
  const auto json = nlohmann::json::parse(
      Answer(python, "-m", "reprise.native_parts", kImportPatience), nullptr,
      false);
  if (!json.is_array()) {
    const bool late = Clock::now() - begin >= kImportPatience;
    return {
        {Health::kWarning, "tape",
         late ? StrCat("not checked: ", python, " ", TooLate(kImportPatience))
              : std::string("not checked: torch cannot be imported there"),
         StrCat("try ", python, " -m reprise.native_parts")}};
  }
  std::vector<Check> parts;
  for (const auto& part : json) {
    if (!part.is_object()) continue;
    parts.push_back(
        {TextOf(part, "health") == "ok" ? Health::kOk : Health::kWarning,
         TextOf(part, "check"), TextOf(part, "found"), TextOf(part, "advice")});
  }
  return parts;
}

}  // namespace

std::string InChild(const std::function<std::string()>& work,
                    std::chrono::seconds patience) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    return "";
  }
  if (child == 0) {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    const std::string text = work();
    size_t at = 0;
    while (at < text.size()) {
      const ssize_t put = write(ends[1], text.data() + at, text.size() - at);
      if (put <= 0) break;
      at += static_cast<size_t>(put);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  if (!ReadAll(ends[0], text, patience)) kill(child, SIGKILL);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "";
}

PythonFacts AskPython(const std::string& python) {
  PythonFacts facts;
  const auto begin = Clock::now();
  const auto json = nlohmann::json::parse(
      Answer(python, "-c", kQuestion, kPatience), nullptr, false);
  if (!json.is_object()) {
    if (Clock::now() - begin >= kPatience) {
      facts.late = StrCat(python, " ", TooLate(kPatience));
    }
    return facts;
  }
  facts.path = python;
  facts.version = TextOf(json, "version");
  facts.reprise = TextOf(json, "reprise");
  facts.torch = TextOf(json, "torch");
  facts.agent = TextOf(json, "agent");
  if (json.contains("libcupti") && json["libcupti"].is_array()) {
    for (const auto& path : json["libcupti"]) {
      if (path.is_string()) facts.libcupti.push_back(path.get<std::string>());
    }
  }
  if (!facts.reprise.empty() && !facts.torch.empty()) {
    facts.parts = AskParts(python);
  }
  return facts;
}

std::vector<Check> CheckPython(const PythonFacts& python) {
  std::vector<Check> checks;
  if (!python.late.empty()) {
    checks.push_back({Health::kWarning, "python", python.late,
                      "ask again when the machine is less busy"});
    return checks;
  }
  if (python.path.empty()) {
    checks.push_back({Health::kWarning, "python", "no Python answers",
                      "name the one that trains with --python, or install it"});
    return checks;
  }
  checks.push_back({Health::kOk, "python",
                    StrCat(python.version, " (", python.path, ")"), ""});
  if (python.reprise.empty()) {
    checks.push_back(
        {Health::kWarning, "package",
         StrCat("the package reprise is not installed in ", python.path),
         "pip install it there, or use `reprise run`"});
  } else if (python.reprise != "source" && python.reprise != REPRISE_VERSION) {
    checks.push_back({Health::kWarning, "package",
                      StrCat("the package is ", python.reprise,
                             ", this command is " REPRISE_VERSION),
                      "use both of one release"});
  } else {
    checks.push_back(
        {Health::kOk, "package", StrCat("reprise ", python.reprise), ""});
  }
  checks.push_back(
      python.torch.empty()
          ? Check{Health::kWarning, "torch",
                  "PyTorch is not installed there: no model can be planned",
                  "install torch in the environment that trains"}
          : Check{Health::kOk, "torch", python.torch, ""});
  checks.insert(checks.end(), python.parts.begin(), python.parts.end());
  return checks;
}

}  // namespace reprise::cli
