// The executor hook's memory: graphs handed in, plans that came back.
//
// Bytes travel as sealed memfds in both directions. Of the graphs, the newest
// is kept so that it can be submitted again to a restarted collector; older
// ones only until they were sent. Of the plans, the newest per graph is kept
// as a descriptor and mapped anew for every caller who asks, so that a caller's
// mapping is its own until it releases it, whatever arrives meanwhile.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profiler/include/reprise_agent.h"
#include "profiler/include/reprise_wire.h"
#include "profiler/open_file.h"

namespace reprise::profiler {

// Step graphs of one job: train, evaluate, a ladder of input sizes. Beyond
// that the least recently used one is forgotten.
constexpr int kMaxGraphs = 16;
constexpr size_t kWantTextBytes = 1024;

struct Graph {
  uint64_t id;  // 0: a free entry
  uint64_t used;
  OpenFile json;
  reprise_msg_graph message;
  char texts[kWantTextBytes];  // budget\0capabilities\0
  bool unsent;

  OpenFile plan;
  reprise_msg_plan plan_facts;
  uint32_t status;  // REPRISE_PLAN_*, 0: nothing heard
  uint64_t smallest_budget;
  char why[192];
};

struct Graphs {
  Graph entries[kMaxGraphs];
  uint64_t uses;
  uint64_t newest;  // id
};

Graph *FindGraph(Graphs *graphs, uint64_t id);

// Fills the fixed part and the texts of a GRAPH message. ETOOBIG when the
// texts do not fit.
reprise_status DescribeWant(uint64_t id, size_t n, const reprise_want &want,
                            reprise_msg_graph *message, char *texts);

// How much of a GRAPH message's fixed part is sent.
size_t MessageBytes(const reprise_msg_graph &message);

// True when this graph was handed in with the same wishes and needs no second
// message, because an answer is on the way or there.
bool IsAnswered(const Graph *graph, const reprise_msg_graph &message,
                const char *texts);

// Makes the graph the newest one and marks it unsent. Takes over `json_fd`.
void RememberGraph(Graphs *graphs, const reprise_msg_graph &message,
                   const char *texts, int json_fd);

void MarkSent(Graphs *graphs, Graph *graph);

// A new connection: the newest graph has to be sent again.
void ResendNewest(Graphs *graphs);

// Messages from the collector. HandlePlan takes over `fd`.
void HandlePlan(Graphs *graphs, const reprise_msg_plan &plan, int fd);
void HandlePlanStatus(Graphs *graphs, const reprise_msg_plan_status &status,
                      const uint8_t *text, size_t text_bytes);

// OK with a mapped plan other than `have_plan_id`, EREFUSED with the reason,
// PENDING, or EINVAL when the graph is not known.
reprise_status LookUpPlan(Graphs *graphs, uint64_t graph_id,
                          uint64_t have_plan_id, reprise_plan *plan);

void ForgetGraphs(Graphs *graphs);

}  // namespace reprise::profiler
