// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor/job.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>

#include "base/str_cat.h"
#include "profiler/include/reprise_agent.h"

namespace reprise::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kOps = 2000;
constexpr uint32_t kRingSlots = 8192;
constexpr uint32_t kFlushMs = 2000;
constexpr uint32_t kPlanMs = 4000;

// The agent's functions that the job calls, loaded by name.
struct Agent {
  decltype(&reprise_abi_version) abi;
  decltype(&reprise_start) start;
  decltype(&reprise_capabilities) capabilities;
  decltype(&reprise_intern) intern;
  decltype(&reprise_step) step;
  decltype(&reprise_op_begin) op_begin;
  decltype(&reprise_op_end) op_end;
  decltype(&reprise_flush) flush;
  decltype(&reprise_graph_submit) submit;
  decltype(&reprise_plan_wait) wait;
  decltype(&reprise_stop) stop;
};

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool LoadAgent(const std::string& path, Agent& agent, std::string& why) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why = dlerror();
    return false;
  }
  const bool all = Find(library, "reprise_abi_version", agent.abi) &&
                   Find(library, "reprise_start", agent.start) &&
                   Find(library, "reprise_capabilities", agent.capabilities) &&
                   Find(library, "reprise_intern", agent.intern) &&
                   Find(library, "reprise_step", agent.step) &&
                   Find(library, "reprise_op_begin", agent.op_begin) &&
                   Find(library, "reprise_op_end", agent.op_end) &&
                   Find(library, "reprise_flush", agent.flush) &&
                   Find(library, "reprise_graph_submit", agent.submit) &&
                   Find(library, "reprise_plan_wait", agent.wait) &&
                   Find(library, "reprise_stop", agent.stop);
  if (!all) why = path + ": is not the agent of this version";
  return all;
}

// A graph of three layers. Saving everything needs 1,310 bytes, and 1,220
// without the first storage between its uses, so 0.8 of the 310 dynamic bytes
// makes the planner recompute it.
std::string Graph(const std::string& name) {
  struct Op {
    const char* name;
    const char* phase;
    const char* reads;
    int writes;
    int bytes;
  };
  constexpr Op kSteps[] = {
      {"doctor.f0", "FORWARD", "", 0, 100},
      {"doctor.f1", "FORWARD", "0", 1, 100},
      {"doctor.f2", "FORWARD", "1", 2, 100},
      {"doctor.b2", "BACKWARD", "1,2", 3, 10},
      {"doctor.b1", "BACKWARD", "0,1,3", 4, 10},
      {"doctor.b0", "BACKWARD", "0,4", 5, 10},
  };
  std::string storages;
  std::string ops;
  for (const Op& op : kSteps) {
    const char* comma = op.writes == 0 ? "" : ",";
    storages +=
        StrCat(comma, "{\"id\":", op.writes, ",\"bytes\":", op.bytes, "}");
    ops += StrCat(comma, "{\"id\":", op.writes, ",\"name\":\"", op.name,
                  "\",\"phase\":\"PHASE_", op.phase,
                  "\",\"kind\":\"OP_KIND_PURE\",\"time_ns\":1000,\"reads\":[",
                  op.reads, "],\"writes\":[", op.writes, "]}");
  }
  return StrCat("{\"name\":\"", name, "\",\"static_bytes\":1000,\"storages\":[",
                storages, "],\"ops\":[", ops, "],\"required\":[5]}");
}

class Job {
 public:
  explicit Job(const Agent& agent) : agent_(agent) {}

  const std::string& said() const { return said_; }

  bool Start(const std::string& socket, const std::string& run_id) {
    Say(StrCat("abi ", agent_.abi()));
    reprise_config config{};
    config.struct_size = sizeof config;
    config.abi = REPRISE_ABI;
    config.ring_slots = kRingSlots;
    config.socket_path = socket.c_str();
    config.run_id = run_id.c_str();
    config.labels = "name=reprise doctor\nreprise.ephemeral=yes\n";
    const int status = agent_.start(&config);
    Say(StrCat("start ", status, " ", Why()));
    return status == REPRISE_OK || status == REPRISE_DEGRADED;
  }

  bool Push() {
    const uint32_t name = agent_.intern("doctor.op", 9);
    agent_.step(1);
    for (uint64_t op = 1; op <= kOps; ++op) {
      agent_.op_begin(op, name, 0, 0, -1, 0);
      agent_.op_end(op);
    }
    const auto begin = Clock::now();
    const int status = agent_.flush(kFlushMs);
    reprise_caps caps{};
    caps.struct_size = sizeof caps;
    agent_.capabilities(&caps);
    Say(StrCat("push ", caps.pushed, " ", caps.dropped, " ", status, " ",
               Since(begin)));
    return status == REPRISE_OK;
  }

  void Plan(const std::string& run_id) {
    const std::string graph = Graph(run_id);
    reprise_want want{};
    want.struct_size = sizeof want;
    want.budget = "0.8x";
    want.capabilities = "tape";
    uint64_t graph_id = 0;
    const auto begin = Clock::now();
    int status = agent_.submit(graph.data(), graph.size(), &want, &graph_id);
    std::string why = status == REPRISE_INERT ? Why() : "";
    if (status == REPRISE_PENDING || status == REPRISE_OK) {
      reprise_plan plan{};
      plan.struct_size = sizeof plan;
      status = agent_.wait(graph_id, 0, kPlanMs, &plan);
      why = plan.why;
      const bool whole = status == REPRISE_OK && plan.json != nullptr &&
                         plan.json_bytes > 0 && plan.plan_id != 0;
      if (status == REPRISE_OK && !whole) {
        status = REPRISE_EINVAL;
        why = "the plan that came is empty";
      }
    }
    Say(StrCat("plan ", status, " ", Since(begin), " ", why));
  }

  void Stop() { agent_.stop(); }

 private:
  static int64_t Since(Clock::time_point begin) {
    return std::chrono::nanoseconds(Clock::now() - begin).count();
  }

  std::string Why() {
    reprise_caps caps{};
    caps.struct_size = sizeof caps;
    agent_.capabilities(&caps);
    return caps.why;
  }

  void Say(std::string line) {
    for (char& c : line) {
      if (c == '\n') c = ' ';
    }
    said_ += line + '\n';
  }

  const Agent& agent_;
  std::string said_;
};

}  // namespace

std::string RunDoctorJob(const std::string& agent_path,
                         const std::string& socket, const std::string& run_id) {
  unsetenv("REPRISE_SINK");
  Agent agent{};
  std::string why;
  if (!LoadAgent(agent_path, agent, why)) {
    return StrCat("start ", static_cast<int>(REPRISE_EABI), " ", why, "\n");
  }
  Job job(agent);
  if (job.Start(socket, run_id) && job.Push()) job.Plan(run_id);
  job.Stop();
  return job.said();
}

}  // namespace reprise::cli
