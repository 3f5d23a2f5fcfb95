// SPDX-License-Identifier: Apache-2.0
//
// The checks of `reprise doctor`, one function per part of the machine. A check
// never changes anything, and none needs a GPU, a daemon or torch: if one of
// these is missing, the check says so, but it is a problem only if something is
// broken.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "clients/cli/core/console.h"

namespace reprise::cli {

struct Endpoint;

enum class Health {
  kOk,
  kWarning,  // works, but less than it could
  kProblem,  // broken: Reprise, or a part of it, cannot work
};

struct Check {
  Health health = Health::kOk;
  std::string name;    // "driver"
  std::string found;   // what was found, in one sentence
  std::string advice;  // what to do; empty: nothing
};

// What the job's Python reports.
struct PythonFacts {
  std::string path;     // empty: none was found
  std::string late;     // one that did not answer in time, and how busy it was
  std::string version;  // version of our package; empty: not installed
  std::string reprise;  // version of the package; empty: not installed
  std::string torch;    // "2.13.0+cpu"; empty: not installed
  std::string agent;    // path of libreprise_agent.so; empty: not found
  std::vector<std::string> libcupti;  // those in its packages
  // Checks of what is compiled for its torch, if package and torch are
  // installed.
  std::vector<Check> parts;
};
// Runs `python` to collect the facts. Imports torch in a child process, only
// for `parts`.
PythonFacts AskPython(const std::string& python);

// Checks driver, namespaces, what the ring needs, and host memory.
std::vector<Check> CheckHost();
// Returns the newest CUDA that the driver supports, as 12080 for 12.8; 0: no
// driver.
int DriverVersion();

// Checks the GPUs, and what prevents CUPTI from tracing on them (MIG, vGPU,
// confidential computing).
std::vector<Check> CheckDevices();
// Checks libcupti and the injection slot. Uses CUPTI only in a child process.
std::vector<Check> CheckCupti(const PythonFacts& python);
// Loads the agent that a job would load, in a child process, and asks for its
// version.
Check CheckAgent(const PythonFacts& python);
// Checks the versions of package and torch.
std::vector<Check> CheckPython(const PythonFacts& python);
// Checks the socket that agents of this user connect to. Sets `listening` if a
// daemon answers.
Check CheckSocket(bool& listening);
// Checks the server, its store and clock, its agents, and which tool holds CUPTI
// in them.
std::vector<Check> CheckDaemon(const Globals& globals);

// Gets the certificate of a server over https, trusted or not, and reports how
// long it is valid.
Check CheckCertificate(const Endpoint& endpoint);

// Returns what `work` returned in a forked child; empty if it crashed or took
// longer than `patience`. Call it before any thread is started.
std::string InChild(const std::function<std::string()>& work,
                    std::chrono::seconds patience = std::chrono::seconds(10));

// Calls a function of a loaded library, whose arguments have exactly these
// types; empty if there is no such function or library.
template <typename... Arguments>
std::optional<int> Call(void* library, const char* name,
                        Arguments... arguments) {
  if (library == nullptr) return std::nullopt;
  const auto call =
      reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  if (call == nullptr) return std::nullopt;
  return call(arguments...);
}

}  // namespace reprise::cli
