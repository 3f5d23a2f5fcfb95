// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/compare.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/graph_proto.h"

namespace reprise::formats {

namespace {

constexpr size_t kMostRows = 500;

// ---- One side ----

const std::string& SourceOf(const v1::StepGraph& proto, int op) {
  static const std::string none;
  return op >= 0 && op < proto.ops_size() ? proto.ops(op).source() : none;
}

// The entry of the schedule at which most is alive.
size_t PeakEntry(const planner::Schedule& schedule,
                 const std::vector<planner::MemoryPoint>& points) {
  size_t best = 0, exec = 0, at = 0;
  for (size_t entry = 0; entry < schedule.size(); ++entry) {
    if (schedule[entry].kind != planner::Entry::Kind::kExec) continue;
    if (points[exec].bytes > points[best].bytes) best = exec;
    if (best == exec) at = entry;
    ++exec;
  }
  return at;
}

// ---- Rows ----

struct Pair {
  int64_t bytes[2] = {0, 0};
  uint64_t count[2] = {0, 0};
};
using PartKey = std::pair<std::string, v1::Category>;
using PartRows = std::map<PartKey, Pair>;

int64_t DifferenceBytes(const v1::ComparedPart& part) {
  return std::abs(part.b_bytes() - part.a_bytes());
}

// Largest difference first, then what is largest.
bool Before(const v1::ComparedPart& a, const v1::ComparedPart& b) {
  const auto key = [](const v1::ComparedPart& part) {
    return std::tuple(-DifferenceBytes(part),
                      -std::max(part.a_bytes(), part.b_bytes()));
  };
  return key(a) < key(b);
}

// Returns how many are left out.
uint32_t Fill(const PartRows& rows,
              google::protobuf::RepeatedPtrField<v1::ComparedPart>& to) {
  std::vector<v1::ComparedPart> parts;
  for (const auto& [key, pair] : rows) {
    v1::ComparedPart& part = parts.emplace_back();
    part.set_name(key.first);
    part.set_category(key.second);
    part.set_a_bytes(pair.bytes[0]);
    part.set_b_bytes(pair.bytes[1]);
    part.set_a_count(pair.count[0]);
    part.set_b_count(pair.count[1]);
  }
  std::stable_sort(parts.begin(), parts.end(), Before);
  const size_t kept = std::min(parts.size(), kMostRows);
  for (size_t i = 0; i < kept; ++i) *to.Add() = std::move(parts[i]);
  return static_cast<uint32_t>(parts.size() - kept);
}

template <typename Key>
PartRows RowsBy(const PeakSide& a, const PeakSide& b, Key key) {
  PartRows rows;
  for (int side = 0; side < 2; ++side) {
    for (const PeakPart& part : (side == 0 ? a : b).parts) {
      Pair& pair = rows[key(part)];
      pair.bytes[side] += part.bytes;
      pair.count[side] += part.count;
    }
  }
  return rows;
}

uint32_t FillAgain(const PeakSide& a, const PeakSide& b, v1::Comparison& to) {
  std::map<std::tuple<std::string, std::string, std::string>, v1::ComparedOp>
      rows;
  for (int side = 0; side < 2; ++side) {
    for (const AgainOp& op : (side == 0 ? a : b).again) {
      v1::ComparedOp& row = rows[{op.module, op.source, op.name}];
      row.set_name(op.name);
      row.set_module(op.module);
      row.set_source(op.source);
      if (side == 0) {
        row.set_a_again(row.a_again() + op.again);
        row.set_a_ns(row.a_ns() + op.ns);
      } else {
        row.set_b_again(row.b_again() + op.again);
        row.set_b_ns(row.b_ns() + op.ns);
      }
    }
  }
  std::vector<v1::ComparedOp> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const v1::ComparedOp& x, const v1::ComparedOp& y) {
                     const auto key = [](const v1::ComparedOp& op) {
                       return std::tuple(op.a_again() == op.b_again(),
                                         -std::abs(op.b_ns() - op.a_ns()));
                     };
                     return key(x) < key(y);
                   });
  const size_t kept = std::min(sorted.size(), kMostRows);
  for (size_t i = 0; i < kept; ++i) {
    *to.add_recomputed() = std::move(sorted[i]);
  }
  return static_cast<uint32_t>(sorted.size() - kept);
}

// ---- The sentence ----

std::string SideText(const char* letter, const v1::ComparedSide& side) {
  std::string text =
      StrCat(letter, " peaks at ", FormatBytes(side.peak_bytes()));
  if (side.budget_bytes() > 0) {
    text += StrCat(" with a budget of ", FormatBytes(side.budget_bytes()));
  }
  return text;
}

std::string Sentence(const v1::Comparison& all, uint32_t only_a,
                     uint32_t only_b) {
  if (all.equal()) {
    return StrCat("A and B are equal: both peak at ",
                  FormatBytes(all.a().peak_bytes()), ".");
  }
  const int64_t more = all.b().peak_bytes() - all.a().peak_bytes();
  std::string text = StrCat(
      SideText("A", all.a()), ", ", SideText("B", all.b()), ": ",
      more == 0
          ? std::string("the same")
          : StrCat(FormatBytes(std::abs(more)), more > 0 ? " more" : " less"),
      ".");
  if (only_a + only_b > 0) {
    text += StrCat("  Run again in A and not in B: ", only_a,
                   only_a == 1 ? " op" : " ops",
                   "; in B and not in A: ", only_b, ".");
  }
  return text;
}

// Of a valid schedule; of the facts, peak and time.
StatusOr<PeakSide> SideOfSchedule(const v1::StepGraph& proto,
                                  const planner::StepGraph& graph,
                                  const planner::Schedule& schedule,
                                  const planner::Capabilities& capabilities,
                                  int64_t reserve_bytes) {
  std::vector<planner::MemoryPoint> points;
  ASSIGN_OR_RETURN(const planner::Evaluation evaluation,
                   planner::Evaluate(graph, schedule, capabilities, &points));
  PeakSide side;
  side.facts.set_peak_bytes(evaluation.peak_bytes + reserve_bytes);
  side.facts.set_step_ns(evaluation.time_ns);
  if (points.empty()) return side;
  const auto peak = static_cast<int64_t>(PeakEntry(schedule, points));
  int64_t rest = evaluation.peak_bytes - graph.static_bytes;
  std::vector<int> maker(graph.storages.size(), -1);
  for (int op = 0; op < graph.op_count(); ++op) {
    for (const planner::StorageId s :
         graph.ops[static_cast<size_t>(op)].writes) {
      maker[static_cast<size_t>(s)] = op;
    }
  }
  for (const planner::Lifetime& life : planner::Lifetimes(graph, schedule)) {
    if (life.born > peak || life.dead <= peak) continue;
    const auto id = static_cast<size_t>(life.storage);
    const planner::Storage& storage = graph.storages[id];
    PeakPart part{.bytes = storage.bytes, .count = 1};
    if (storage.category != planner::Category::kUnspecified) {
      part.category = static_cast<v1::Category>(storage.category);
    }
    if (maker[id] >= 0) {
      part.module = graph.ops[static_cast<size_t>(maker[id])].module;
      part.source = SourceOf(proto, maker[id]);
    }
    rest -= storage.bytes;
    side.parts.push_back(std::move(part));
  }
  const auto add = [&](const char* name, v1::Category category, int64_t bytes) {
    if (bytes <= 0) return;
    side.parts.push_back({.category = category,
                          .module = name,
                          .source = name,
                          .bytes = bytes,
                          .count = 1});
  };
  for (const planner::StaticPart& part : planner::StaticMemory(graph)) {
    add("(static memory)", static_cast<v1::Category>(part.category),
        part.bytes);
  }
  add("(reserve)", v1::CATEGORY_UNKNOWN, reserve_bytes);
  add("(workspace of the op at the peak)", v1::CATEGORY_TEMPORARY, rest);

  std::vector<uint32_t> runs(graph.ops.size());
  for (const planner::Entry& entry : schedule) {
    if (entry.kind == planner::Entry::Kind::kExec) {
      ++runs[static_cast<size_t>(entry.id)];
    }
  }
  for (size_t op = 0; op < runs.size(); ++op) {
    if (runs[op] < 2) continue;
    const planner::Op& one = graph.ops[op];
    side.again.push_back({.name = one.name,
                          .module = one.module,
                          .source = SourceOf(proto, static_cast<int>(op)),
                          .again = runs[op] - 1,
                          .ns = planner::RerunNs(one) * (runs[op] - 1)});
  }
  return side;
}

}  // namespace

StatusOr<PeakSide> SideOfPlan(const v1::StepGraph& proto,
                              const planner::StepGraph& graph,
                              const v1::Plan& plan,
                              const planner::Schedule& schedule,
                              const planner::Capabilities& capabilities,
                              int64_t reserve_bytes) {
  const bool planned = plan.feasible() && !schedule.empty();
  ASSIGN_OR_RETURN(
      PeakSide side,
      SideOfSchedule(
          proto, graph,
          planned ? schedule
                  : planner::BaseSchedule(graph, capabilities.free_policy),
          capabilities, reserve_bytes));
  v1::ComparedSide& facts = side.facts;
  facts.set_peak_of(planned ? "predicted under the plan"
                            : "predicted without a plan");
  facts.set_budget_bytes(plan.budget_bytes());
  facts.set_plan_id(plan.plan_id());
  facts.set_graph_id(plan.graph_id());
  facts.set_base_peak_bytes(plan.base_peak_bytes());
  facts.set_base_step_ns(plan.base_time_ns());
  if (planned) facts.set_overhead(plan.overhead());
  return side;
}

StatusOr<PeakSide> SideOfGraph(const v1::StepGraph& proto,
                               const std::string& graph_id) {
  ASSIGN_OR_RETURN(const planner::StepGraph graph, ToPlanner(proto));
  const planner::Schedule base =
      planner::BaseSchedule(graph, planner::FreePolicy::kEager);
  ASSIGN_OR_RETURN(const planner::Evaluation evaluation,
                   planner::Evaluate(graph, base, {}));
  const int64_t reserve_bytes =
      std::max<int64_t>(0, proto.measured_peak_bytes() - evaluation.peak_bytes);
  ASSIGN_OR_RETURN(PeakSide side,
                   SideOfSchedule(proto, graph, base, {}, reserve_bytes));
  side.facts.set_graph_id(graph_id);
  side.facts.set_peak_of("predicted without a plan");
  side.facts.set_base_peak_bytes(side.facts.peak_bytes());
  side.facts.set_base_step_ns(side.facts.step_ns());
  return side;
}

v1::Comparison Compare(const PeakSide& a, const PeakSide& b) {
  v1::Comparison all;
  *all.mutable_a() = a.facts;
  *all.mutable_b() = b.facts;
  (void)Fill(
      RowsBy(a, b,
             [](const PeakPart& part) { return PartKey("", part.category); }),
      *all.mutable_categories());
  all.set_more_modules(Fill(RowsBy(a, b,
                                   [](const PeakPart& part) {
                                     return PartKey(part.module, part.category);
                                   }),
                            *all.mutable_modules()));
  all.set_more_sources(Fill(RowsBy(a, b,
                                   [](const PeakPart& part) {
                                     return PartKey(part.source, part.category);
                                   }),
                            *all.mutable_sources()));
  all.set_more_recomputed(FillAgain(a, b, all));

  const auto same = [](const v1::ComparedPart& part) {
    return part.a_bytes() == part.b_bytes() && part.a_count() == part.b_count();
  };
  uint32_t only_a = 0, only_b = 0;
  bool again_equal = true;
  for (const v1::ComparedOp& op : all.recomputed()) {
    again_equal = again_equal && op.a_again() == op.b_again();
    only_a += op.b_again() == 0 ? op.a_again() : 0;
    only_b += op.a_again() == 0 ? op.b_again() : 0;
  }
  // Rows are sorted: where one that was left out differs, so do all that stay.
  all.set_equal(again_equal && a.facts.peak_bytes() == b.facts.peak_bytes() &&
                a.facts.budget_bytes() == b.facts.budget_bytes() &&
                std::all_of(all.modules().begin(), all.modules().end(), same) &&
                std::all_of(all.sources().begin(), all.sources().end(), same));
  all.set_sentence(Sentence(all, only_a, only_b));
  return all;
}

}  // namespace reprise::formats
