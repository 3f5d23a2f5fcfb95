// What the executor hook remembers: submitted graphs and the plans received for
// them.
//
// Both travel as sealed memfds. The newest graph is kept so that it can be
// submitted again to a restarted collector; older ones only until they are
// sent. The newest plan of each graph is kept as a descriptor and mapped anew
// for every caller, so that a caller's mapping stays valid until it releases
// it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/include/reprise_agent.h"
#include "profiler/include/reprise_wire.h"
#include "profiler/open_file.h"

namespace reprise::profiler {

// The number of step graphs kept per job (training, evaluation, several input
// sizes). Beyond it the least recently used one is dropped.
constexpr int kMaxGraphs = 16;
constexpr size_t kWantTextBytes = 1024;

// A graph and what is asked about it. `id` names the answer: the caller's
// request_id, or the graph's id where the caller gave none.
struct Graph {
  uint64_t id;  // 0: a free entry
  uint64_t used;
  OpenFile json;
  reprise_msg_graph message;
  char texts[kWantTextBytes];  // budget\0capabilities\0
  bool unsent;

  OpenFile plan;
  reprise_msg_plan plan_facts;
  uint32_t status;  // REPRISE_PLAN_*; 0: no answer yet
  uint64_t smallest_budget;
  char why[REPRISE_WHY_BYTES];
};

struct Graphs {
  Graph entries[kMaxGraphs];
  uint64_t uses;
  uint64_t newest;  // id of the newest graph
};

// Returns the entry of a graph, or null.
Graph *FindGraph(Graphs *graphs, uint64_t id);

// Fills the fixed part and the texts of a GRAPH message. Returns ETOOBIG if the
// texts do not fit.
reprise_status DescribeWant(uint64_t id, size_t n, const reprise_want &want,
                            reprise_msg_graph *message, char *texts);

// Returns how many bytes of the fixed part are sent: trailing fields that are
// zero are omitted.
size_t MessageBytes(const reprise_msg_graph &message);

// Returns the id that the answer to this message carries.
uint64_t AnswerIdOf(const reprise_msg_graph &message);

// Returns whether this graph was already submitted with the same request, and
// an answer exists or is on its way, so that no second message is needed.
bool IsAnswered(const Graph *graph, const reprise_msg_graph &message,
                const char *texts);

// Makes this the newest graph and marks it unsent. Takes ownership of
// `json_fd`.
void RememberGraph(Graphs *graphs, const reprise_msg_graph &message,
                   const char *texts, int json_fd);

void MarkSent(Graphs *graphs, Graph *graph);

// After a reconnection: marks the newest graph unsent.
void ResendNewest(Graphs *graphs);

// Handle messages from the collector. HandlePlan takes ownership of `fd`.
void HandlePlan(Graphs *graphs, const reprise_msg_plan &plan, int fd);
void HandlePlanStatus(Graphs *graphs, const reprise_msg_plan_status &status,
                      const uint8_t *text, size_t text_bytes);

// `id` is that of the answer (AnswerIdOf). Returns OK with a mapped plan other
// than `have_plan_id`, EREFUSED with the reason, PENDING, or EINVAL if there is
// no such request.
reprise_status LookUpPlan(Graphs *graphs, uint64_t id, uint64_t have_plan_id,
                          reprise_plan *plan);

void ForgetGraphs(Graphs *graphs);

}  // namespace reprise::profiler
