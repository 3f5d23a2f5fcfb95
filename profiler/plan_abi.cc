// The C ABI of the executor hook: graphs are submitted, plans come back.
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "profiler/abi_struct.h"
#include "profiler/agent.h"
#include "profiler/clock.h"
#include "profiler/include/reprise_sink.h"
#include "profiler/names.h"
#include "profiler/open_file.h"
#include "profiler/session.h"
#include "profiler/sink.h"

using namespace reprise::profiler;

namespace {

// How long to sleep at a time: a step in another thread may receive the plan or
// replace the socket meanwhile.
constexpr uint64_t kSlice = 50 * kMillisecond;

// Checks once, under the lock. `*socket` is what to poll.
reprise_status Look(Agent *agent, uint64_t request_id, uint64_t have_plan_id,
                    reprise_plan *plan, int *socket) {
  Locked guard(&agent->control);
  TakeTurn(agent, NowNs());
  *socket = agent->connection.socket.fd();
  if (CurrentRing(agent) == nullptr || !HasCollector(agent)) {
    DescribeTrouble(agent, plan->why, sizeof plan->why);
    return REPRISE_INERT;
  }
  return LookUpPlan(&agent->graphs, request_id, have_plan_id, plan);
}

}  // namespace

extern "C" {

REPRISE_EXPORT reprise_status reprise_graph_submit(const void *json, size_t n,
                                                   const reprise_want *want,
                                                   uint64_t *graph_id) {
  KeepErrno keep;
  reprise_want wishes;
  if (json == nullptr || n == 0 || graph_id == nullptr ||
      !ReadStruct(want, &wishes))
    return REPRISE_EINVAL;
  if (n > REPRISE_MAX_GRAPH_BYTES) return REPRISE_ETOOBIG;
  *graph_id = Fnv1a64(json, n);
  if (*graph_id == 0) *graph_id = 1;  // 0 means "no graph"
  reprise_msg_graph message;
  char texts[kWantTextBytes];
  if (DescribeWant(*graph_id, n, wishes, &message, texts) != REPRISE_OK)
    return REPRISE_ETOOBIG;
  Agent *agent = CurrentAgent();
  if (CurrentRing(agent) == nullptr) return REPRISE_INERT;

  {
    Locked guard(&agent->control);
    if (agent->sink.file.open()) {
      const BodyPart parts[] = {
          {&message, MessageBytes(message)},
          {texts, message.budget_bytes + message.capabilities_bytes},
          {json, n}};
      WriteSinkEntry(agent, REPRISE_SINK_GRAPH, parts, 3);
      return REPRISE_INERT;  // a file sink makes no plan
    }
    if (!HasCollector(agent)) return REPRISE_INERT;
    if (IsAnswered(FindGraph(&agent->graphs, AnswerIdOf(message)), message,
                   texts))
      return REPRISE_PENDING;
  }
  // This takes milliseconds, so other threads must not wait for it.
  const int fd = CreateSealedCopy("reprise-graph", json, n);
  if (fd < 0) return REPRISE_INERT;
  Locked guard(&agent->control);
  if (CurrentRing(agent) == nullptr) {  // stopped meanwhile
    close(fd);
    return REPRISE_INERT;
  }
  RememberGraph(&agent->graphs, message, texts, fd);
  TakeTurn(agent, NowNs());
  return REPRISE_PENDING;
}

REPRISE_EXPORT reprise_status reprise_plan_wait(uint64_t request_id,
                                                uint64_t have_plan_id,
                                                uint32_t timeout_ms,
                                                reprise_plan *plan) {
  KeepErrno keep;
  reprise_plan found;
  if (!ReadStruct(plan, &found)) return REPRISE_EINVAL;
  const uint32_t struct_size = found.struct_size;
  const uint64_t deadline = NowNs() + timeout_ms * kMillisecond;
  reprise_status status = REPRISE_INERT;
  for (;;) {
    memset(&found, 0, sizeof found);
    found.struct_size = struct_size;
    Agent *agent = CurrentAgent();
    int socket = -1;
    if (CurrentRing(agent) == nullptr) {
      status = REPRISE_INERT;
      break;
    }
    status = Look(agent, request_id, have_plan_id, &found, &socket);
    const uint64_t now = NowNs();
    if (status != REPRISE_PENDING || now >= deadline) break;
    const uint64_t left = deadline - now < kSlice ? deadline - now : kSlice;
    pollfd wake = {socket, POLLIN, 0};
    // Return on a signal, so that Ctrl-C reaches the caller.
    if (poll(&wake, socket >= 0 ? 1 : 0,
             static_cast<int>((left + kMillisecond - 1) / kMillisecond)) < 0 &&
        errno == EINTR)
      break;
  }
  WriteStruct(found, plan);
  return status;
}

REPRISE_EXPORT reprise_status reprise_plan_poll(uint64_t request_id,
                                                uint64_t have_plan_id,
                                                reprise_plan *plan) {
  return reprise_plan_wait(request_id, have_plan_id, 0, plan);
}

REPRISE_EXPORT void reprise_plan_release(reprise_plan *plan) {
  reprise_plan held;
  if (!ReadStruct(plan, &held) || held.json == nullptr) return;
  munmap(const_cast<void *>(held.json), held.json_bytes);
  held.json = nullptr;
  held.json_bytes = 0;
  WriteStruct(held, plan);
}

}  // extern "C"
