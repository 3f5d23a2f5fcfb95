// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/refusal.h"

#include <string>
#include <string_view>
#include <vector>

#include "base/str_cat.h"
#include "formats/convert/sentence.h"
#include "planner/job_floor.h"

namespace reprise::formats {
namespace {

// At most a second of one core; more than most steps need.
constexpr int64_t kFloorTicks = 4'000'000;

// "op 17 aten.bmm.default (layers.3.attn)"
std::string Named(const planner::StepGraph& graph, planner::OpId op) {
  const planner::Op& named = graph.ops[op];
  std::string text = StrCat("op ", op);
  if (!named.name.empty()) text += " " + named.name;
  if (!named.module.empty()) text += " (" + named.module + ")";
  return text;
}

// What the program itself holds at an op, of what the forward made.
struct Held {
  int64_t bytes = 0;
  planner::StorageId largest = -1;
};
Held HeldByTheProgram(const planner::StepGraph& graph, planner::OpId at) {
  Held held;
  for (planner::OpId o = 0; o < at; ++o) {
    const planner::Op& op = graph.ops[o];
    if (op.phase != planner::Phase::kForward || op.reads.empty()) continue;
    for (const planner::StorageId s : op.writes) {
      if (graph.storages[s].release_op < at) continue;
      held.bytes += graph.storages[s].bytes;
      if (held.largest < 0 ||
          graph.storages[s].bytes > graph.storages[held.largest].bytes) {
        held.largest = s;
      }
    }
  }
  return held;
}

// Names what the executor may not do, if no single tensor explains the
// difference.
std::string Limit(const planner::Capabilities& may) {
  if (may.execution == planner::Execution::kOnce || may.max_runs == 2) {
    return "it runs an op again once at the most, in the backward";
  }
  if (may.recompute_in_backward_only) {
    return "it makes tensors again in the backward only, just before a read";
  }
  return "no order of running ops again that it can follow needs less";
}

// Explains why the executor needs `gap` bytes more at an op than it may use. A
// smaller amount is not an explanation.
std::string Rule(const Task& task, planner::OpId at, int64_t gap) {
  const planner::StepGraph& graph = task.graph;
  const std::vector<planner::OpId> once = planner::NeverAgain(graph, at);
  const Held held = HeldByTheProgram(graph, at);
  int64_t kept = 0;
  for (const planner::OpId o : once) {
    for (const planner::StorageId s : graph.ops[o].writes) {
      kept += graph.storages[s].bytes;
    }
  }
  if (kept >= gap && kept >= held.bytes) {
    const planner::Op& first = graph.ops[once.front()];
    const bool runs_once = first.kind == planner::OpKind::kOnce ||
                           first.kind == planner::OpKind::kCollective;
    std::string text =
        StrCat(runs_once ? "it never runs " : "it keeps what ",
               Named(graph, once.front()), runs_once ? " again" : " makes");
    if (once.size() > 1) {
      text += StrCat(" (and ", once.size() - 1, " more)");
    }
    return text;
  }
  if (held.bytes >= gap) {
    const std::string& name = graph.storages[held.largest].name;
    return StrCat("variables of the program or autograd hold ",
                  FormatBytes(held.bytes), " until then, the largest ",
                  name.empty() ? StrCat("storage ", held.largest) : name);
  }
  return Limit(task.request.capabilities);
}

// Returns the bytes that an optimizer op has in memory and that the optimizer
// itself made.
int64_t OwnBytes(const planner::StepGraph& graph, const planner::Op& op) {
  std::vector<bool> own(graph.storages.size(), false);
  for (const planner::Op& maker : graph.ops) {
    if (maker.phase != planner::Phase::kOptimizer) continue;
    for (const planner::StorageId s : maker.writes) own[s] = true;
  }
  int64_t bytes = op.workspace_bytes;
  for (const planner::StorageId s : op.writes) bytes += graph.storages[s].bytes;
  for (const planner::StorageId s : op.reads) {
    if (own[s]) bytes += graph.storages[s].bytes;
  }
  return bytes;
}

// An op of an optimizer's step has the optimizer and those of its options that
// change what it takes as its module: "AdamW(foreach=None, fused=None)".
bool HasOption(const planner::Op& op, std::string_view option) {
  return op.module.find(StrCat(option, "=")) != std::string::npos &&
         op.module.find(StrCat(option, "=True")) == std::string::npos;
}

std::string OfTheOptimizer(const planner::StepGraph& graph,
                           const planner::Op& op) {
  if (op.phase != planner::Phase::kOptimizer) return "";
  const int64_t own = OwnBytes(graph, op);
  std::string advice = HasOption(op, "fused") ? "fused=True" : "";
  if (op.name.find("_foreach_") != std::string::npos &&
      op.module.find("foreach=") != std::string::npos) {
    advice += StrCat(advice.empty() ? "" : " or ", "foreach=False");
  }
  if (own == 0 || advice.empty()) {
    return " It runs after the backward: no plan lowers that.";
  }
  const bool both = advice.find(" or ") != std::string::npos;
  return StrCat(" ", FormatBytes(own),
                " of it are the optimizer's temporaries: ", advice,
                both ? " need less." : " needs less.");
}

}  // namespace

v1::Infeasible ToProto(const planner::Infeasible& refusal,
                       const planner::StepGraph& graph, int64_t reserve_bytes) {
  v1::Infeasible proto;
  proto.set_smallest_budget_bytes(refusal.smallest_budget_bytes +
                                  reserve_bytes);
  if (refusal.smallest_known_bytes > 0) {
    proto.set_smallest_known_bytes(refusal.smallest_known_bytes +
                                   reserve_bytes);
  }
  if (refusal.blocking_op != planner::kNoOp) {
    const planner::Op& op = graph.ops[static_cast<size_t>(refusal.blocking_op)];
    proto.set_blocking_op(static_cast<uint32_t>(refusal.blocking_op));
    proto.set_blocking_op_name(op.name);
    proto.set_blocking_module(op.module);
  }
  proto.mutable_storages()->Assign(refusal.storages.begin(),
                                   refusal.storages.end());
  return proto;
}

std::string RefusalSentence(const Task& task, const v1::Plan& plan) {
  const v1::Infeasible& why = plan.infeasible();
  // The floor below is that of steps without host memory.
  if (Undecided(plan) || !plan.inferred().empty() || plan.has_link() ||
      why.blocking_op() >= task.graph.ops.size()) {
    return PlanSentence(plan, task.measured_step_ns);
  }
  const auto at = static_cast<planner::OpId>(why.blocking_op());
  // Without what is held back, as the planner saw them.
  const int64_t budget = task.request.budget_bytes;
  const int64_t needed = why.smallest_budget_bytes() - task.reserve_bytes;
  const std::string held = HeldBack(task.reserve_bytes);
  planner::JobFloor floor = planner::FloorOf(
      task.graph, task.request.capabilities, budget, kFloorTicks);
  const bool nobody = floor.bytes > budget;
  // The proof stopped just above the budget, so look for the full amount.
  if (nobody && floor.bytes < needed) {
    const planner::JobFloor more = planner::FloorOf(
        task.graph, task.request.capabilities, needed - 1, kFloorTicks);
    if (more.bytes > floor.bytes) floor = more;
  }
  if (nobody && FormatBytesUp(floor.bytes + task.reserve_bytes) ==
                    FormatBytesUp(why.smallest_budget_bytes())) {
    return PlanSentence(plan, task.measured_step_ns) +
           OfTheOptimizer(task.graph, task.graph.ops[at]);
  }
  const char* const unchecked = plan.bound_proof() == v1::BOUND_PROOF_SOLVER
                                    ? " by the solver's word, not checked"
                                    : "";
  if (nobody) {
    const BytesPair text =
        BudgetAndNeeded(plan.budget_bytes(), floor.bytes + task.reserve_bytes);
    std::string least = StrCat("Nothing fits in ", text.budget, ": ",
                               Named(task.graph, floor.op), " needs at least ",
                               text.needed, held);
    const std::string optimizer =
        OfTheOptimizer(task.graph, task.graph.ops[floor.op]);
    // The bound for every executor may exceed what was proven for this one.
    if (!optimizer.empty() || floor.bytes > needed) {
      return StrCat(least, ".", optimizer);
    }
    return StrCat(least, "; this executor ",
                  FormatBytesUp(needed + task.reserve_bytes), unchecked,
                  ", as ", Rule(task, at, needed - floor.bytes), ".",
                  SmallestKnown(why));
  }
  const BytesPair text =
      BudgetAndNeeded(plan.budget_bytes(), needed + task.reserve_bytes);
  return StrCat("This executor cannot keep to ", text.budget, ": ",
                Named(task.graph, at), " needs at least ", text.needed, held,
                unchecked, ", as ", Rule(task, at, needed - budget), ".",
                SmallestKnown(why));
}

}  // namespace reprise::formats
