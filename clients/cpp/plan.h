// SPDX-License-Identifier: Apache-2.0
//
// Memory plans for a training loop in C++, over the C ABI of
// libreprise_agent.so.
//
//   reprise::Graph graph("two layers", weights_bytes);
//   const int x = graph.AddStorage(400000, "x");
//   graph.AddOp({.name = "load", .writes = {x}, .time_ns = 100});
//   ...
//   graph.Require(gradient);
//   reprise::Session session;                       // finds the daemon
//   const reprise::Answer answer = session.Ask(graph, "0.5x", "free");
//   if (!answer.ok) { print answer.why and run the ops in program order }
//   for (int entry : answer.schedule) ...           // e >= 0 runs op e,
//                                                   // e < 0 frees storage -e-1
//   session.ReportStep(answer, step, peak_bytes, step_ns);
//
// Nothing throws and nothing ends the program: without a daemon, `why` says
// that none answers. Needs C++20, the standard library and the agent only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reprise {

// One op of the step; ops are added in the order in which the program runs
// them. Storages are named by the numbers that AddStorage returned.
struct Op {
  std::string name = {};
  std::vector<int> reads = {};
  std::vector<int> writes = {};
  std::vector<int> mutates = {};  // changed in place; list them in reads, too
  int64_t time_ns = 0;
  int64_t workspace_bytes = 0;
  bool backward = false;
  bool once = false;  // may not run again
};
// A training step as ops and the storages (blocks of memory) that they read and
// write. Exactly one op writes each storage; others may change it in place.

class Graph {
 public:
  Graph(std::string name, int64_t static_bytes)
      : name_(std::move(name)), static_bytes_(static_bytes) {}

  // Adds a storage and returns its number.
  int AddStorage(int64_t bytes, std::string name = {});
  // Adds the next op and returns its number.
  int AddOp(Op op);
  // The storage must hold its last version when the step ends.
  void Require(int storage) { required_.push_back(storage); }

  // Returns why the planner would refuse the graph, with the path of the field
  // ("ops[3].reads[0]: there is no storage 9, the graph has 4"), or "" if it is
  // valid.
  std::string Check() const;

  const std::string& name() const { return name_; }
  int64_t static_bytes() const { return static_bytes_; }
  const std::vector<Op>& ops() const { return ops_; }
  int storage_count() const { return static_cast<int>(storages_.size()); }
  int64_t bytes(int storage) const { return storages_[storage].bytes; }
  const std::vector<int>& required() const { return required_; }

  // Returns the graph as proto3 JSON of reprise.v1.StepGraph.
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
// Answer of the planner to one Ask.

struct Answer {
  bool ok = false;
  // If not ok: the planner's sentence, or what is missing on this machine.
  std::string why;
  std::vector<int> schedule;
  uint64_t plan_id = 0;
  int64_t peak_bytes = 0;  // predicted
  int64_t time_ns = 0;     // predicted, of one step
  // If nothing fits: the smallest budget that is not ruled out.
  int64_t smallest_bytes = 0;
};

// Runs the agent of this process. Only one Session may exist at a time.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Submits the graph and waits up to `timeout_ms` for a plan. `budget` is
  // "22GiB", "0.5x" or a number of bytes; `executor` says which schedules the
  // loop can run, "free" for any.
  Answer Ask(const Graph& graph, const std::string& budget,
             const std::string& executor = "free",
             uint32_t timeout_ms = 60'000);

  // Reports a finished step. `answer` is null if it ran without a plan.
  void ReportStep(const Answer* answer, uint64_t step, int64_t peak_bytes,
                  int64_t step_ns);
  // Reports that `checked` gradients were compared bit for bit with those of a
  // step without the plan, and that `differing` of them differ.
  void ReportCheck(const Answer& answer, uint64_t step, uint32_t checked,
                   uint32_t differing);

 private:
  uint64_t applied_ = 0;
};

// Reads the "schedule" from proto3 JSON of reprise.v1.Plan; its entries are
// numbers or numbers in quotes. Returns false if there is no schedule, or an
// entry names neither an op nor a storage of the graph.
bool ReadSchedule(const std::string& plan_json, const Graph& graph,
                  std::vector<int>* schedule);

}  // namespace reprise
