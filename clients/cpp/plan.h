// SPDX-License-Identifier: Apache-2.0
//
// Plans for any training loop in C++, over the C ABI of libreprise_agent.so.
//
//   reprise::Graph graph("two layers", weights_bytes);
//   const int x = graph.AddStorage(400000, "x");
//   graph.AddOp({.name = "load", .writes = {x}, .time_ns = 100});
//   ...
//   graph.Require(gradient);
//   reprise::Session session;                       // finds the daemon
//   const reprise::Answer answer = session.Ask(graph, "0.5x", "free");
//   if (!answer.ok) { say answer.why, run the ops in their order }
//   for (int entry : answer.schedule) ...           // e >= 0 runs op e,
//                                                   // e < 0 frees storage -e-1
//   session.ReportStep(answer, step, peak_bytes, step_ns);
//
// Nothing throws and nothing ends the program: without a daemon `why` says so.
// C++20, the standard library and the agent alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reprise {

// One call of the program, in the order in which they run. Storages are named
// by the number that AddStorage returned.
struct Op {
  std::string name = {};
  std::vector<int> reads = {};
  std::vector<int> writes = {};
  std::vector<int> mutates = {};  // in reads too
  int64_t time_ns = 0;
  int64_t workspace_bytes = 0;
  bool backward = false;
  bool once = false;  // may not run again
};

class Graph {
 public:
  Graph(std::string name, int64_t static_bytes)
      : name_(std::move(name)), static_bytes_(static_bytes) {}

  int AddStorage(int64_t bytes, std::string name = {});
  int AddOp(Op op);
  // Must be there, at its last version, when the step is over.
  void Require(int storage) { required_.push_back(storage); }

  // Why the planner would refuse it, by the path of the field
  // ("ops[3].reads[0]: there is no storage 9, the graph has 4"); empty: it is
  // well.
  std::string Check() const;

  const std::string& name() const { return name_; }
  int64_t static_bytes() const { return static_bytes_; }
  const std::vector<Op>& ops() const { return ops_; }
  int storage_count() const { return static_cast<int>(storages_.size()); }

  // proto3 JSON of reprise.v1.StepGraph.
  std::string ToJson() const;

 private:
  struct Storage {
    int64_t bytes = 0;
    std::string name;
  };

  std::string name_;
  int64_t static_bytes_;
  std::vector<Storage> storages_;
  std::vector<Op> ops_;
  std::vector<int> required_;
};

struct Answer {
  bool ok = false;
  // Where not ok: the sentence of the planner, or what is missing here.
  std::string why;
  std::vector<int> schedule;
  uint64_t plan_id = 0;
  int64_t peak_bytes = 0;  // predicted
  int64_t time_ns = 0;
  // Where nothing fits: the smallest budget that is not ruled out.
  int64_t smallest_bytes = 0;
};

// The agent of this process; one at a time.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // `budget`: "22GiB", "0.5x", bytes; `executor`: what the loop can run, "free"
  // for any schedule. Waits up to `timeout_ms`.
  Answer Ask(const Graph& graph, const std::string& budget,
             const std::string& executor = "free",
             uint32_t timeout_ms = 60'000);

  // A finished step; `answer` null: it ran without a plan.
  void ReportStep(const Answer* answer, uint64_t step, int64_t peak_bytes,
                  int64_t step_ns);
  // `checked` gradients were compared with those of a step without the plan,
  // bit for bit, and `differing` of them differ.
  void ReportCheck(const Answer& answer, uint64_t step, uint32_t checked,
                   uint32_t differing);

 private:
  uint64_t applied_ = 0;
};

// The "schedule" of proto3 JSON of reprise.v1.Plan: numbers, or numbers in
// quotes. False where there is none, or one of its entries names no op and no
// storage of the graph.
bool ReadSchedule(const std::string& plan_json, const Graph& graph,
                  std::vector<int>* schedule);

}  // namespace reprise
