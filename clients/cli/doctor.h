// SPDX-License-Identifier: Apache-2.0
//
// What `reprise doctor` looks at, one function per part of the machine. A check
// never changes anything, and none needs a GPU, a daemon or torch: what is not
// there is said, and is a problem only where something is broken.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "clients/cli/console.h"

namespace reprise::cli {

enum class Health {
  kOk,
  kWarning,  // works, with less than it could
  kProblem,  // broken: Reprise, or a part of it, cannot work like this
};

struct Check {
  Health health = Health::kOk;
  std::string name;    // "driver"
  std::string found;   // what is there, one sentence
  std::string advice;  // what to do; empty when there is nothing to do
};

// What the Python of the job says.
struct PythonFacts {
  std::string path;     // empty: none was found
  std::string version;  // "3.11.2"
  std::string reprise;  // version of the package; empty: not installed
  std::string torch;    // "2.13.0+cpu"; empty: not installed
  std::string agent;    // path of libreprise_agent.so; empty: not found
  std::vector<std::string> libcupti;  // in its packages
  // What is compiled for its torch: only where package and torch are there.
  std::vector<Check> parts;
};
// Imports torch in a child process, for `parts` alone.
PythonFacts AskPython(const std::string& python);

// Driver, profiling permissions, namespaces, the ring's needs.
std::vector<Check> CheckHost();
// The newest CUDA that the driver runs, as 12080 for 12.8; 0: there is none.
int DriverVersion();

// GPUs, with what keeps CUPTI from tracing on them (MIG, vGPU, confidential
// computing), and the processes that the driver has on them.
struct DeviceFacts {
  std::vector<Check> checks;
  std::vector<pid_t> processes;
};
DeviceFacts CheckDevices();
// libcupti, the injection slot. CUPTI is only touched in a child process.
std::vector<Check> CheckCupti(const PythonFacts& python);
// Package, agent and torch versions.
std::vector<Check> CheckPython(const PythonFacts& python);
// The socket that agents of this user look at; `listening` is set where a
// daemon answered.
Check CheckSocket(bool& listening);
// The socket, the server, its store and clock, its agents, who holds CUPTI in
// them, and the processes that are not among them. `on_gpu`: of DeviceFacts.
std::vector<Check> CheckDaemon(const Globals& globals,
                               const std::vector<pid_t>& on_gpu);

// What `work` writes, from a forked child; empty when it crashed or took
// longer than `patience`. For before any thread is there.
std::string InChild(const std::function<std::string()>& work,
                    std::chrono::seconds patience = std::chrono::seconds(10));

}  // namespace reprise::cli
