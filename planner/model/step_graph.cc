// SPDX-License-Identifier: Apache-2.0
#include "planner/model/step_graph.h"

#include <algorithm>

#include "base/str_cat.h"

namespace reprise::planner {
namespace {

constexpr int64_t kMaxSum = int64_t{1} << 62;

// Names an op for errors: "op 17 (aten.bmm.default)".
std::string OpLabel(const StepGraph& graph, OpId op) {
  const std::string& name = graph.ops[op].name;
  return name.empty() ? StrCat("ops[", op, "]")
                      : StrCat("ops[", op, "] (", name.substr(0, 80), ")");
}

// A sum that must stay below 2^62.
class Total {
 public:
  // Adds a value. Returns false if the sum would exceed the limit.
  bool Add(int64_t value) {
    if (value > kMaxSum - sum_) return false;
    sum_ += value;
    return true;
  }

 private:
  int64_t sum_ = 0;
};

Status CheckNotNegative(const std::string& what, int64_t value) {
  if (value >= 0) return OkStatus();
  return InvalidArgument(StrCat(what, ": must not be negative, got ", value));
}

// Checks bytes: not negative, and sums within 2^62.
Status CheckStorages(const StepGraph& graph) {
  RETURN_IF_ERROR(CheckNotNegative("static_bytes", graph.static_bytes));
  for (size_t i = 0; i < graph.static_parts.size(); ++i) {
    RETURN_IF_ERROR(CheckNotNegative(StrCat("static_parts[", i, "].bytes"),
                                     graph.static_parts[i].bytes));
  }
  Total bytes;
  bool fits = bytes.Add(graph.static_bytes);
  for (StorageId s = 0; s < graph.storage_count(); ++s) {
    RETURN_IF_ERROR(CheckNotNegative(StrCat("storages[", s, "].bytes"),
                                     graph.storages[s].bytes));
    fits = fits && bytes.Add(graph.storages[s].bytes);
  }
  int64_t workspace = 0;
  for (OpId o = 0; o < graph.op_count(); ++o) {
    const Op& op = graph.ops[o];
    RETURN_IF_ERROR(CheckNotNegative(OpLabel(graph, o) + ".workspace_bytes",
                                     op.workspace_bytes));
    RETURN_IF_ERROR(
        CheckNotNegative(OpLabel(graph, o) + ".state_bytes", op.state_bytes));
    fits = fits && bytes.Add(op.state_bytes);
    workspace = std::max(workspace, op.workspace_bytes);
  }
  if (!fits || !bytes.Add(workspace)) {
    return InvalidArgument("storages: their bytes sum to more than 2^62");
  }
  return OkStatus();
}

// Checks times: not negative, and their sum within 2^62.
Status CheckTimes(const StepGraph& graph) {
  Total time;
  for (OpId o = 0; o < graph.op_count(); ++o) {
    RETURN_IF_ERROR(
        CheckNotNegative(OpLabel(graph, o) + ".time_ns", graph.ops[o].time_ns));
    RETURN_IF_ERROR(CheckNotNegative(OpLabel(graph, o) + ".again_ns",
                                     graph.ops[o].again_ns));
    if (!time.Add(std::max(graph.ops[o].time_ns, graph.ops[o].again_ns))) {
      return InvalidArgument("ops: their time_ns sum to more than 2^62");
    }
  }
  return OkStatus();
}

// Checks the ids of one list of an op: in range and without duplicates.
// `seen[s]` is the number of the last list that contained s.
Status CheckIds(const StepGraph& graph, const std::string& what,
                const std::vector<StorageId>& ids, std::vector<int64_t>& seen,
                int64_t list) {
  for (const StorageId s : ids) {
    if (s < 0 || s >= graph.storage_count()) {
      return InvalidArgument(StrCat(what, ": there is no storage ", s,
                                    "; ids go from 0 to ",
                                    graph.storage_count() - 1));
    }
    if (seen[s] == list) {
      return InvalidArgument(StrCat(what, ": names storage ", s, " twice"));
    }
    seen[s] = list;
  }
  return OkStatus();
}

// Checks replay windows: ops of the graph, ascending, without overlap.
Status CheckWindows(const StepGraph& graph, const std::string& name,
                    const Op& op) {
  OpId next = 0;
  for (const ReplayWindow& window : op.replay_windows) {
    if (window.first < next || window.last < window.first ||
        window.last >= graph.op_count()) {
      return InvalidArgument(StrCat(
          name, ".replay_windows: ops ", window.first, " to ", window.last,
          " are not a stretch of this graph's ops, after the one before"));
    }
    next = window.last + 1;
  }
  return OkStatus();
}

Status CheckOp(const StepGraph& graph, OpId o, std::vector<OpId>& writer,
               std::vector<int64_t>& seen) {
  const Op& op = graph.ops[o];
  const std::string name = OpLabel(graph, o);
  const int64_t list = int64_t{3} * o;
  RETURN_IF_ERROR(CheckIds(graph, name + ".reads", op.reads, seen, list));
  for (const StorageId s : op.reads) {
    if (writer[s] == kNoOp) {
      return InvalidArgument(StrCat(name, ".reads: storage ", s,
                                    " is not written by an earlier op"));
    }
  }
  // Every mutated storage must have this op's mark from `reads`, exactly once.
  for (const StorageId s : op.mutates) {
    const bool known = s >= 0 && s < graph.storage_count();
    if (known && seen[s] == list + 1) {
      return InvalidArgument(
          StrCat(name, ".mutates: names storage ", s, " twice"));
    }
    if (!known || seen[s] != list) {
      return InvalidArgument(StrCat(name, ".mutates: storage ", s,
                                    " is not in the reads of this op"));
    }
    seen[s] = list + 1;
  }
  RETURN_IF_ERROR(CheckWindows(graph, name, op));
  RETURN_IF_ERROR(CheckIds(graph, name + ".writes", op.writes, seen, list + 2));
  for (const StorageId s : op.writes) {
    if (writer[s] != kNoOp) {
      return InvalidArgument(StrCat(name, ".writes: storage ", s,
                                    " is already written by ops[", writer[s],
                                    "]"));
    }
    writer[s] = o;
  }
  return OkStatus();
}

}  // namespace

std::vector<StaticPart> DivideBytes(int64_t bytes,
                                    std::span<const StaticPart> parts,
                                    Category rest) {
  std::vector<StaticPart> divided;
  const auto take = [&](Category category, int64_t most) {
    const int64_t taken = std::min(most, bytes);
    if (taken > 0) divided.push_back({.category = category, .bytes = taken});
    bytes -= taken;
  };
  for (const StaticPart& part : parts) take(part.category, part.bytes);
  take(rest, bytes);
  return divided;
}

std::vector<StaticPart> StaticMemory(const StepGraph& graph) {
  return DivideBytes(
      graph.static_bytes, graph.static_parts,
      graph.static_parts.empty() ? Category::kStatic : Category::kUnknown);
}

bool HasReplayWindows(const StepGraph& graph) {
  return std::any_of(graph.ops.begin(), graph.ops.end(),
                     [](const Op& op) { return !op.replay_windows.empty(); });
}

Status Validate(const StepGraph& graph) {
  if (graph.ops.size() > kMaxOps || graph.storages.size() > kMaxOps) {
    return InvalidArgument(
        StrCat("ops: at most ", kMaxOps, " ops and storages are planned"));
  }
  RETURN_IF_ERROR(CheckStorages(graph));
  RETURN_IF_ERROR(CheckTimes(graph));
  std::vector<OpId> writer(graph.storages.size(), kNoOp);
  std::vector<int64_t> seen(graph.storages.size(), -1);
  for (OpId o = 0; o < graph.op_count(); ++o) {
    RETURN_IF_ERROR(CheckOp(graph, o, writer, seen));
  }
  for (StorageId s = 0; s < graph.storage_count(); ++s) {
    if (writer[s] == kNoOp) {
      return InvalidArgument(StrCat("storages[", s, "]: no op writes it"));
    }
    const OpId release = graph.storages[s].release_op;
    if (release == kNoOp) continue;
    if (release < writer[s] || release >= graph.op_count()) {
      return InvalidArgument(StrCat("storages[", s, "].release_op: op ",
                                    release, " is not between its writer ",
                                    writer[s], " and the last op"));
    }
  }
  const int64_t list = int64_t{3} * graph.op_count();
  return CheckIds(graph, "required", graph.required, seen, list);
}

}  // namespace reprise::planner
