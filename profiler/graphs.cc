#include "profiler/graphs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "profiler/message.h"
#include "profiler/open_file.h"

namespace reprise::profiler {
namespace {

void ForgetGraph(Graph *graph) {
  graph->json.Close();
  graph->plan.Close();
  memset(static_cast<void *>(graph), 0, sizeof *graph);
}

Graph *FreeEntry(Graphs *graphs) {
  Graph *oldest = &graphs->entries[0];
  for (Graph &graph : graphs->entries) {
    if (graph.id == 0) return &graph;
    if (graph.used < oldest->used) oldest = &graph;
  }
  ForgetGraph(oldest);
  return oldest;
}

bool SameWant(const Graph &graph, const reprise_msg_graph &message,
              const char *texts) {
  return memcmp(&graph.message, &message, sizeof message) == 0 &&
         memcmp(graph.texts, texts,
                message.budget_bytes + message.capabilities_bytes) == 0;
}

}  // namespace

Graph *FindGraph(Graphs *graphs, uint64_t id) {
  if (id == 0) return nullptr;
  for (Graph &graph : graphs->entries)
    if (graph.id == id) return &graph;
  return nullptr;
}

reprise_status DescribeWant(uint64_t id, size_t n, const reprise_want &want,
                            reprise_msg_graph *message, char *texts) {
  const char *budget = want.budget ? want.budget : "";
  const char *capabilities = want.capabilities ? want.capabilities : "";
  const size_t budget_bytes = strlen(budget) + 1;
  const size_t capabilities_bytes = strlen(capabilities) + 1;
  if (budget_bytes + capabilities_bytes > kWantTextBytes)
    return REPRISE_ETOOBIG;
  *message = {};
  message->graph_id = id;
  message->bytes = n;
  message->static_bytes = want.static_bytes;
  message->device_bytes = want.device_bytes;
  message->device_free_bytes = want.device_free_bytes;
  message->reserve_bytes = want.reserve_bytes;
  message->request_id = want.request_id;
  message->replaces = want.replaces;
  message->more_bytes = want.more_bytes;
  message->budget_bytes = static_cast<uint32_t>(budget_bytes);
  message->capabilities_bytes = static_cast<uint32_t>(capabilities_bytes);
  memcpy(texts, budget, budget_bytes);
  memcpy(texts + budget_bytes, capabilities, capabilities_bytes);
  return REPRISE_OK;
}

size_t MessageBytes(const reprise_msg_graph &message) {
  const uint64_t last = message.reserve_bytes | message.request_id |
                        message.replaces | message.more_bytes;
  if (last != 0) return sizeof message;
  return message.device_free_bytes == 0 ? REPRISE_MSG_GRAPH_LEAST
                                        : REPRISE_MSG_GRAPH_DEVICE;
}

uint64_t AnswerIdOf(const reprise_msg_graph &message) {
  return message.request_id != 0 ? message.request_id : message.graph_id;
}

bool IsAnswered(const Graph *graph, const reprise_msg_graph &message,
                const char *texts) {
  // "Not planned" and "unreachable" may be temporary, so ask again.
  return graph != nullptr && SameWant(*graph, message, texts) &&
         graph->status != REPRISE_PLAN_NOT_PLANNED &&
         graph->status != REPRISE_PLAN_UNREACHABLE;
}

void RememberGraph(Graphs *graphs, const reprise_msg_graph &message,
                   const char *texts, int json_fd) {
  if (Graph *previous = FindGraph(graphs, graphs->newest);
      previous != nullptr && !previous->unsent)
    previous->json.Close();

  Graph *graph = FindGraph(graphs, AnswerIdOf(message));
  if (graph == nullptr) {
    graph = FreeEntry(graphs);
  } else if (!SameWant(*graph, message, texts)) {
    graph->plan.Close();  // made for another request
  }
  graph->id = AnswerIdOf(message);
  graph->used = ++graphs->uses;
  graph->json.Hold(json_fd);
  graph->message = message;
  memcpy(graph->texts, texts,
         message.budget_bytes + message.capabilities_bytes);
  graph->unsent = true;
  graph->status = 0;
  graph->smallest_budget = 0;
  graph->why[0] = 0;
  graphs->newest = graph->id;
}

void MarkSent(Graphs *graphs, Graph *graph) {
  graph->unsent = false;
  if (graph->id != graphs->newest) graph->json.Close();
}

void ResendNewest(Graphs *graphs) {
  if (Graph *graph = FindGraph(graphs, graphs->newest);
      graph != nullptr && graph->json.open())
    graph->unsent = true;
}

void HandlePlan(Graphs *graphs, const reprise_msg_plan &plan, int fd) {
  Graph *graph = FindGraph(graphs, plan.graph_id);
  if (graph == nullptr) {
    close(fd);
    return;
  }
  const char *wrong = plan.plan_id == 0
                          ? "has no id"
                          : CheckSealed(fd, plan.bytes, REPRISE_MAX_PLAN_BYTES);
  if (wrong != nullptr) {
    close(fd);
    graph->status = REPRISE_PLAN_NOT_PLANNED;
    snprintf(graph->why, sizeof graph->why,
             "the plan received from the collector %s: it is not used", wrong);
    return;
  }
  graph->plan.Hold(fd);
  graph->plan_facts = plan;
  graph->status = 0;
  graph->smallest_budget = 0;
  graph->why[0] = 0;
}

void HandlePlanStatus(Graphs *graphs, const reprise_msg_plan_status &status,
                      const uint8_t *text, size_t text_bytes) {
  Graph *graph = FindGraph(graphs, status.graph_id);
  if (graph == nullptr) return;
  graph->status = status.status;
  graph->smallest_budget = status.smallest_budget;
  CopySentence(text, text_bytes, graph->why, sizeof graph->why);
}

reprise_status LookUpPlan(Graphs *graphs, uint64_t id, uint64_t have_plan_id,
                          reprise_plan *plan) {
  Graph *graph = FindGraph(graphs, id);
  plan->graph_id = graph != nullptr ? graph->message.graph_id : id;
  if (graph == nullptr) {
    snprintf(plan->why, sizeof plan->why,
             "request %016llx: was not submitted since the agent started",
             static_cast<unsigned long long>(id));
    return REPRISE_EINVAL;
  }
  graph->used = ++graphs->uses;

  const reprise_msg_plan &facts = graph->plan_facts;
  if (graph->plan.open() && facts.plan_id != have_plan_id) {
    const void *json = MapSealed(graph->plan.fd(), facts.bytes);
    if (json == nullptr) {
      snprintf(plan->why, sizeof plan->why,
               "the plan of %llu bytes cannot be mapped: %s",
               static_cast<unsigned long long>(facts.bytes), strerror(errno));
      return REPRISE_EREFUSED;
    }
    plan->flags = facts.flags;
    plan->plan_id = facts.plan_id;
    plan->predicted_peak = facts.predicted_peak;
    plan->predicted_ns = facts.predicted_ns;
    plan->json = json;
    plan->json_bytes = facts.bytes;
    return REPRISE_OK;
  }
  memcpy(plan->why, graph->why, sizeof plan->why);
  if (graph->status == REPRISE_PLAN_INFEASIBLE) {
    plan->predicted_peak = graph->smallest_budget;
    return REPRISE_EREFUSED;
  }
  return graph->status == REPRISE_PLAN_NOT_PLANNED ? REPRISE_EREFUSED
                                                   : REPRISE_PENDING;
}

void ForgetGraphs(Graphs *graphs) {
  for (Graph &graph : graphs->entries) ForgetGraph(&graph);
  *graphs = {};
}

}  // namespace reprise::profiler
