// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/nested_windows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "planner/bounds/lp.h"
#include "planner/bounds/window_bound.h"

namespace reprise::planner {
namespace {

constexpr int kNestSource = 0, kNestSink = 1;
// Finite sums stay below half of MaxFlow::kInfinite.
constexpr int kNestSumBits = 59;
constexpr int kMostNestShift = 40;
constexpr int kMostCuts = 40;
constexpr int kMostIterations = 10'000;  // of the simplex, between two cuts
// A price rises at most to this many times the first.
constexpr double kMostRise = 8;
// Enough if the planes leave less than this part of the bound to be proven.
constexpr double kEnough = 1.0 / 2000;

}  // namespace

NestedWindows::NestedWindows(const Problem& problem,
                             const std::vector<OpId>& windows)
    : problem_(problem), windows_(windows), flow_(Build()) {}

MaxFlow NestedWindows::Build() {
  const Versions& versions = problem_.versions;
  struct Arc {
    int from, to;
  };
  std::vector<Arc> infinite;
  int nodes = 2;
  std::vector<int> op_before(problem_.op_count, -1);
  std::vector<int> value_before(versions.value_count(), -1);
  for (int k = 0; k < static_cast<int>(windows_.size()); ++k) {
    const OpId at = windows_[k];
    const std::vector<uint8_t> forced = ForcedAt(problem_, at);
    int64_t fixed = problem_.static_bytes + problem_.workspace[at];
    for (const StorageId s : problem_.Writes(at)) fixed += problem_.bytes[s];
    std::vector<int> op_node(problem_.op_count, -1);
    std::vector<int> value_node(versions.value_count(), -1);
    size_t next = values_.size();
    const auto add = [&](ValueId v) {
      if (forced[v] != 0 || value_node[v] >= 0) return;
      value_node[v] = nodes++;
      const OpId maker = versions.maker[v];
      int from = kNestSource;
      if (problem_.rules.may_remake[v] != 0) {
        if (op_node[maker] < 0) {
          op_node[maker] = nodes++;
          if (op_before[maker] >= 0) {
            infinite.push_back({op_before[maker], op_node[maker]});
          } else {
            costs_.push_back({k, maker, -1, op_node[maker], kNestSource});
            total_cost_ += problem_.rules.rerun_ns[maker];
          }
        }
        from = op_node[maker];
      }
      values_.push_back({k, v, -1, value_node[v], from});
      total_bytes_ += problem_.BytesOf(v);
      if (value_before[v] >= 0) {
        infinite.push_back({value_before[v], value_node[v]});
      }
    };
    for (ValueId v = 0; v < versions.value_count(); ++v) {
      if (forced[v] != 0) fixed += problem_.BytesOf(v);
      const auto uses = problem_.Uses(v);
      if (versions.maker[v] >= at || uses.empty() || uses.back() < at) continue;
      add(v);
      if (value_node[v] >= 0) infinite.push_back({value_node[v], kNestSink});
    }
    for (; next < values_.size(); ++next) {
      const ValueId v = values_[next].id;
      if (problem_.rules.may_remake[v] == 0) continue;
      // Inputs of a maker are added with the first of its values.
      const int maker = op_node[versions.maker[v]];
      if (maker != values_[next].node + 1) continue;
      for (const ValueId u : versions.Need(versions.maker[v])) {
        add(u);
        if (value_node[u] >= 0) infinite.push_back({value_node[u], maker});
      }
    }
    for (OpId o = 0; o < problem_.op_count; ++o) {
      if (op_node[o] >= 0) op_before[o] = op_node[o];
    }
    for (ValueId v = 0; v < versions.value_count(); ++v) {
      if (value_node[v] >= 0) value_before[v] = value_node[v];
    }
    fixed_bytes_.push_back(fixed);
  }
  MaxFlow flow(nodes);
  for (Part& part : costs_) part.arc = flow.AddArc(part.maker, part.node, 0);
  for (Part& part : values_) part.arc = flow.AddArc(part.maker, part.node, 0);
  for (const Arc& arc : infinite) {
    flow.AddArc(arc.from, arc.to, MaxFlow::kInfinite);
  }
  flow.Build();
  return flow;
}

std::optional<NestedWindows::Plane> NestedWindows::Cut(
    const std::vector<double>& ns_per_byte) {
  // The finest scale at which all sums stay in range.
  double largest = static_cast<double>(total_cost_) + 1;
  for (const double price : ns_per_byte) {
    largest = std::max(largest, price * static_cast<double>(total_bytes_));
  }
  const int shift =
      std::min(kNestSumBits - 3 - std::ilogb(largest), kMostNestShift);
  if (shift < 0) return std::nullopt;
  std::vector<int64_t> prices;
  for (const double price : ns_per_byte) {
    prices.push_back(static_cast<int64_t>(std::ldexp(price, shift)));
  }
  for (const Part& part : costs_) {
    flow_.SetCapacity(part.arc, problem_.rules.rerun_ns[part.id] << shift);
  }
  for (const Part& part : values_) {
    flow_.SetCapacity(part.arc,
                      prices[part.window] * problem_.BytesOf(part.id));
  }
  __int128 proven = flow_.Solve(kNestSource, kNestSink);
  Plane plane;
  for (size_t k = 0; k < windows_.size(); ++k) {
    proven -= static_cast<__int128>(prices[k]) * room_[k];
    plane.over_bytes.push_back(-static_cast<double>(room_[k]));
  }
  const auto added =
      static_cast<int64_t>((proven + ((__int128{1} << shift) - 1)) >> shift);
  if (added > best_.added_ns) {
    best_ = {.added_ns = added, .shift = shift};
    for (size_t k = 0; k < prices.size(); ++k) {
      best_.prices.push_back({static_cast<int32_t>(k), prices[k]});
    }
  }
  for (const Part& part : costs_) {
    if (!flow_.OnSourceSide(part.node)) {
      plane.cost_ns += static_cast<double>(problem_.rules.rerun_ns[part.id]);
    }
  }
  for (const Part& part : values_) {
    if (!flow_.OnSourceSide(part.node) && flow_.OnSourceSide(part.maker)) {
      plane.over_bytes[part.window] +=
          static_cast<double>(problem_.BytesOf(part.id));
    }
  }
  return plane;
}

NestedWindows::Proof NestedWindows::Solve(
    int64_t budget_bytes, double ns_per_byte, int64_t most_ticks,
    const std::function<bool()>& should_stop) {
  best_ = {};
  room_.clear();
  for (const int64_t fixed : fixed_bytes_)
    room_.push_back(budget_bytes - fixed);
  if (*std::min_element(room_.begin(), room_.end()) < 0 || total_cost_ == 0 ||
      total_bytes_ == 0) {
    return best_;
  }
  const int64_t begin = ticks();
  const double byte_scale = LpScale(total_bytes_);
  const double cost_scale = LpScale(total_cost_) * (1 << kLpCostBits);
  const double most = kMostRise * ns_per_byte * cost_scale / byte_scale;
  std::vector<double> prices(windows_.size(), ns_per_byte);
  // max z: z <= cost + sum price * over, for every plane.
  LinearProgram planes;
  const int32_t z = planes.AddColumn(-1, 0, kLpInfinity);
  for (size_t k = 0; k < windows_.size(); ++k) {
    planes.AddColumn(0, 0, most);
  }
  for (int cut = 0; cut < kMostCuts && ticks() - begin < most_ticks; ++cut) {
    const std::optional<Plane> plane = Cut(prices);
    if (!plane.has_value()) break;
    planes.AddEntry(z, 1);
    for (size_t k = 0; k < windows_.size(); ++k) {
      planes.AddEntry(static_cast<int32_t>(k) + 1,
                      -plane->over_bytes[k] * byte_scale);
    }
    planes.CloseRow(-kLpInfinity, plane->cost_ns * cost_scale);
    const LpSeries::Answer answer =
        LpSeries(planes, should_stop).Solve(kMostIterations);
    if (answer.outcome != LpOutcome::kOptimal) break;
    const double left =
        answer.solution[z] / cost_scale - static_cast<double>(best_.added_ns);
    if (left <= static_cast<double>(best_.added_ns) * kEnough) break;
    for (size_t k = 0; k < windows_.size(); ++k) {
      prices[k] =
          std::max(0.0, answer.solution[k + 1]) * byte_scale / cost_scale;
    }
  }
  return best_;
}

}  // namespace reprise::planner
