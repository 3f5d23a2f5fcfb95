// SPDX-License-Identifier: Apache-2.0
//
// Makes a step graph of at most 64 ops (usually valid) and a request from the
// input. Checks that the planner ends within its ticks, that its plan passes
// the evaluator within the budget, that bound <= overhead, that a refusal names
// more than the budget, and that the explanation and a short sweep agree with
// both.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/explain/explain.h"
#include "planner/model/evaluate.h"
#include "planner/once/once.h"
#include "planner/planner.h"
#include "tests/fuzz/harness.h"

namespace {

using namespace reprise::planner;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool Empty() const { return at_ >= size_; }
  int Next() { return Empty() ? 0 : data_[at_++]; }
  int Below(int count) { return Next() % count; }
  // Lets numbers be huge or negative and ids out of range from now on.
  void GoWild() { wild_ = true; }
  bool wild() const { return wild_; }
  int64_t Number() {
    const int kind = Next();
    if (!wild_ || kind < 240) return kind % 50;
    int64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | Next();
    return kind < 250 ? value >> (8 * (kind % 8)) : value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  bool wild_ = false;
};

StepGraph ReadGraph(Bytes& in) {
  constexpr int kMostOps = 64;
  StepGraph graph;
  graph.static_bytes = in.Below(30);
  while (!in.Empty() && graph.op_count() < kMostOps) {
    const int shape = in.Next();
    Op op;
    op.time_ns = in.Number();
    op.kind = static_cast<OpKind>(shape % 16 < 5 ? shape % 5 : 0);
    if (op.kind == OpKind::kSeeded) op.state_bytes = in.Below(8);
    if (shape & 16) op.workspace_bytes = in.Number();
    const int written = graph.storage_count();
    for (int reads = in.Below(4); reads > 0 && written > 0; --reads) {
      // Reads a recent storage or any earlier one.
      const int which = in.Next();
      const StorageId s = which < 128
                              ? written - 1 - which % std::min(written, 12)
                              : (which - 128) * written / 128;
      if (std::find(op.reads.begin(), op.reads.end(), s) == op.reads.end()) {
        op.reads.push_back(s);
      }
    }
    if ((shape & 32) && !op.reads.empty()) op.mutates = {op.reads[0]};
    for (int writes = shape >> 6; writes > 0; --writes) {
      op.writes.push_back(graph.storage_count());
      Storage storage;
      storage.bytes = in.Number();
      storage.pinned = in.Below(32) == 0;
      graph.storages.push_back(storage);
    }
    if (in.wild() && in.Below(64) == 0) op.reads.push_back(in.Next() - 8);
    graph.ops.push_back(std::move(op));
  }
  const int half = graph.op_count() / 2;
  for (OpId o = 0; o < graph.op_count(); ++o) {
    if (o >= half) graph.ops[o].phase = Phase::kBackward;
    if (o + 2 >= graph.op_count()) graph.ops[o].phase = Phase::kOptimizer;
  }
  for (StorageId s = 0; s < graph.storage_count(); ++s) {
    if (s % 13 == 5) graph.required.push_back(s);
    if (s % 7 == 3) graph.storages[s].release_op = graph.op_count() - 1;
  }
  return graph;
}

Capabilities ReadCapabilities(Bytes& in) {
  const int flags = in.Next();
  Capabilities capabilities;
  capabilities.max_runs = flags & 1 ? in.Below(4) : 0;
  capabilities.recompute_in_backward_only = (flags & 2) != 0;
  capabilities.seeded_ok = (flags & 4) != 0;
  capabilities.collective_ok = (flags & 8) != 0;
  capabilities.duplicate_outputs = (flags & 16) != 0;
  capabilities.free_policy =
      flags & 32 ? FreePolicy::kProgram : FreePolicy::kEager;
  capabilities.ns_per_op = flags & 64 ? in.Number() : 0;
  if (flags & 128) {
    capabilities.execution = static_cast<Execution>(in.Next() % 2);
  }
  return capabilities;
}

void CheckPlan(const StepGraph& graph, const Request& request,
               const Plan& plan) {
  if (!plan.feasible) {
    REPRISE_FUZZ_CHECK(plan.undecided || plan.infeasible.smallest_budget_bytes >
                                             request.budget_bytes);
    return;
  }
  const auto evaluation = Evaluate(graph, plan.schedule, request.capabilities);
  REPRISE_FUZZ_CHECK(evaluation.ok());
  REPRISE_FUZZ_CHECK(evaluation->peak_bytes <= request.budget_bytes);
  REPRISE_FUZZ_CHECK(evaluation->time_ns == plan.evaluation.time_ns);
  REPRISE_FUZZ_CHECK(plan.bound <= plan.overhead);
  if (request.capabilities.execution == Execution::kFree) return;
  const Problem problem = MakeProblem(graph, request.capabilities);
  REPRISE_FUZZ_CHECK(EvaluateOnce(problem, plan.schedule).ok());
}

void CheckCurve(const std::vector<CurvePoint>& curve) {
  for (size_t i = 1; i < curve.size(); ++i) {
    const CurvePoint& larger = curve[i - 1];
    const CurvePoint& smaller = curve[i];
    REPRISE_FUZZ_CHECK(smaller.budget_bytes < larger.budget_bytes);
    if (!smaller.feasible) continue;
    REPRISE_FUZZ_CHECK(larger.feasible);
    REPRISE_FUZZ_CHECK(smaller.peak_bytes <= larger.peak_bytes);
    REPRISE_FUZZ_CHECK(smaller.time_ns >= larger.time_ns);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes in(data, size);
  Request request;
  request.capabilities = ReadCapabilities(in);
  request.max_ticks = 1 + in.Next() * 100;
  request.seed = static_cast<uint64_t>(in.Next());
  const int share = 40 + in.Below(64);  // of the base peak, in percent
  const int extra = in.Next();
  const bool sweeps = extra % 8 == 1;
  request.strategy = static_cast<Strategy>(extra % 16 < 6 ? extra % 16 : 0);
  if (extra >= 240) in.GoWild();
  const StepGraph graph = ReadGraph(in);
  if (!Validate(graph).ok()) {
    REPRISE_FUZZ_CHECK(!MakePlan(graph, request).ok());
    return 0;
  }
  const auto base =
      Evaluate(graph, BaseSchedule(graph, request.capabilities.free_policy),
               request.capabilities);
  if (!base.ok()) return 0;  // times above 2^63
  request.budget_bytes =
      base->peak_bytes / 100 * share + base->peak_bytes % 100 * share / 100;
  // The ticks end it; the watchdog catches code that does not count them.
  const auto plan = MakePlan(graph, request);
  if (!plan.ok()) {
    REPRISE_FUZZ_CHECK(plan.status().code() == reprise::Code::kInvalidArgument);
    return 0;
  }
  CheckPlan(graph, request, *plan);
  const Explanation explanation =
      Explain(graph, *plan, request.budget_bytes, request.capabilities);
  REPRISE_FUZZ_CHECK(!plan->feasible ||
                     explanation.storages.size() == graph.storages.size());
  if (sweeps) {
    const auto curve = Sweep(graph, request, 5);
    REPRISE_FUZZ_CHECK(curve.ok());
    CheckCurve(*curve);
  }
  return 0;
}
