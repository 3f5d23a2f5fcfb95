// SPDX-License-Identifier: Apache-2.0
//
// A job for the tests: the real agent library in a separate process that obeys
// commands line by line, so that tests can kill it at any point.
//
//   collect_job AGENT.so SOCKET SLOTS
//     push FIRST COUNT PER_MS   pushes COUNT allocs, PER_MS per millisecond;
//                               addresses count up from FIRST
//     step N                    one step mark: reconnects, reports losses
//     work                      step marks until the agent is connected
//     fork N                    N children that use the inert agent and exit
//     clone_push FIRST COUNT    pushes while 50 children start and exit
//     graph JSON                submits it; answers "OK <plan id>" or the error
//     stop | kill
//   Every line is answered with "ok" or another word.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "profiler/include/reprise_agent.h"

namespace {

void* g_library = nullptr;

template <typename Function>
Function Find(const char* name) {
  auto found = reinterpret_cast<Function>(dlsym(g_library, name));
  if (found == nullptr) {
    std::fprintf(stderr, "no %s in the agent\n", name);
    std::exit(2);
  }
  return found;
}

#define AGENT(name) Find<decltype(&name)>(#name)

void Push(uint64_t first, uint64_t count, uint64_t per_ms) {
  const auto alloc = AGENT(reprise_alloc);
  const auto step = AGENT(reprise_step);
  for (uint64_t i = 0; i < count; ++i) {
    alloc(first + i, 64, 0, 0, REPRISE_ALLOC, 0);
    if (per_ms != 0 && i % per_ms == per_ms - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      step(i);
    }
  }
}

void Fork(int children) {
  for (int i = 0; i < children; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      // Like a DataLoader worker: its agent is inert and must stay so.
      AGENT(reprise_alloc)(666'666'666, 64, 0, 0, REPRISE_ALLOC, 0);
      AGENT(reprise_step)(1);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) std::exit(3);
  }
}

std::string SubmitGraph(const std::string& json) {
  reprise_want want{};
  want.struct_size = sizeof(want);
  want.budget = "0.5x";
  want.capabilities = "tape";
  uint64_t graph = 0;
  AGENT(reprise_graph_submit)(json.data(), json.size(), &want, &graph);
  reprise_plan plan{};
  plan.struct_size = sizeof(plan);
  reprise_status status = REPRISE_PENDING;
  for (int i = 0; i < 100 && status == REPRISE_PENDING; ++i) {
    status = AGENT(reprise_plan_wait)(graph, 0, 200, &plan);
  }
  if (status != REPRISE_OK) return std::string("no: ") + plan.why;
  char id[32];
  std::snprintf(id, sizeof(id), "OK %016" PRIx64, plan.plan_id);
  AGENT(reprise_plan_release)(&plan);
  return id;
}

// Runs one command and sets `answer`. Returns false for the command that ends
// the job.
bool Obey(const std::string& line, std::string& answer) {
  std::istringstream words(line);
  std::string word;
  uint64_t first = 0, count = 0, per_ms = 0;
  words >> word;
  if (word == "push") {
    words >> first >> count >> per_ms;
    Push(first, count, per_ms);
  } else if (word == "step") {
    words >> first;
    AGENT(reprise_step)(first);
  } else if (word == "work") {
    while (AGENT(reprise_flush)(1000) != REPRISE_OK) AGENT(reprise_step)(1);
  } else if (word == "fork") {
    words >> count;
    Fork(static_cast<int>(count));
  } else if (word == "clone_push") {
    words >> first >> count;
    std::thread pusher([&] { Push(first, count, 50); });
    Fork(50);
    pusher.join();
  } else if (word == "graph") {
    answer = SubmitGraph(line.substr(6));
  } else if (word == "kill") {
    kill(getpid(), SIGKILL);
  } else {
    AGENT(reprise_stop)();
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  g_library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (g_library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  reprise_config config{};
  config.struct_size = sizeof(config);
  config.abi = REPRISE_ABI;
  config.socket_path = argv[2];
  config.ring_slots = static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10));
  AGENT(reprise_start)(&config);
  std::cout << "started" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer = "ok";
    if (!Obey(line, answer)) break;
    std::cout << answer << std::endl;
  }
  return 0;
}
