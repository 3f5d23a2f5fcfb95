#include "profiler/agent.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace reprise::profiler {

Agent *g_agent;
Family g_family;
__thread ThreadState t_thread __attribute__((tls_model("initial-exec")));

namespace {

bool g_wipes;  // the kernel wipes the page; else InChild does
uint32_t g_handler_installed;

// Runs after fork in a process with threads: only plain stores and close are
// allowed.
void InChild() {
  memset(&t_thread, 0, sizeof t_thread);
  if (Agent *agent = CurrentAgent(); agent != nullptr && !g_wipes)
    memset(static_cast<void *>(agent), 0, sizeof *agent);
  CloseInheritedFiles();
}

}  // namespace

Agent *EnsureAgent() {
  Agent *agent = CurrentAgent();
  if (agent != nullptr) return agent;

  void *memory = mmap(nullptr, sizeof(Agent), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  const bool wipes = madvise(memory, sizeof(Agent), MADV_WIPEONFORK) == 0;
  __atomic_store_n(&g_wipes, wipes, __ATOMIC_RELAXED);

  Agent *none = nullptr;
  if (!__atomic_compare_exchange_n(&g_agent, &none,
                                   static_cast<Agent *>(memory), false,
                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    munmap(memory, sizeof(Agent));
    return none;
  }
  if (__atomic_exchange_n(&g_handler_installed, 1u, __ATOMIC_ACQ_REL) == 0)
    pthread_atfork(nullptr, nullptr, InChild);
  return static_cast<Agent *>(memory);
}

bool SetWindow(Agent *agent, uint32_t kinds, uint64_t steps) {
  __atomic_store_n(&agent->window.kinds, kinds, __ATOMIC_RELAXED);
  agent->window.steps_left = steps;
  agent->window.step_begun = false;
  agent->outgoing.capabilities = true;
  return BeginDeviceWindow(agent, agent->window.paused != 0 ? 0 : kinds);
}

void PauseWindow(Agent *agent, bool paused) {
  __atomic_store_n(&agent->window.paused, paused ? 1u : 0u, __ATOMIC_RELAXED);
  agent->outgoing.capabilities = true;
  if (paused)
    EndDeviceWindow(agent, /*now=*/true);
  else
    BeginDeviceWindow(agent, agent->window.kinds);
}

void LeaveOpsFrom(Agent *agent, uint32_t depth) {
  t_thread.depth = depth;
  const uint32_t left = t_thread.pushed >> depth << depth;
  if (__builtin_expect(left == 0, 1)) return;
  t_thread.pushed &= ~left;
  PopDeviceOps(agent, __builtin_popcount(left));
}

uint32_t ThreadId() {
  if (t_thread.id == 0)
    t_thread.id = static_cast<uint32_t>(syscall(SYS_gettid));
  return t_thread.id;
}

}  // namespace reprise::profiler
