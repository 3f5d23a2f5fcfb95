// SPDX-License-Identifier: Apache-2.0
#include "planner/verify/window.h"

namespace reprise::verify {
namespace {

constexpr int kSource = 0, kSink = 1;
constexpr int kMostShift = 60;
constexpr int64_t kMostPrice = int64_t{1} << 62;

}  // namespace

Window::Window(const Facts& facts, OpId at)
    : facts_(facts),
      at_(at),
      sure_(facts.value_count, 0),
      wanted_(facts.value_count, 0),
      branched_(facts.value_count, -1),
      node_(facts.value_count, -1) {
  FindSurelyPresent();
  Build();
}

void Window::FindSurelyPresent() {
  const OpId trigger = facts_.TriggerFrom(at_);
  for (Value v = 0; v < facts_.value_count; ++v) {
    if (facts_.maker[v] >= at_) continue;
    for (const OpId use : facts_.uses[v]) {
      if (use < at_) continue;
      wanted_[v] = 1;
      // t reads it, or it is read before re-runs are possible, or it may not be
      // recomputed.
      if (use == at_ || use < trigger || facts_.may_remake[v] == 0) {
        sure_[v] = 1;
      }
      break;
    }
  }
  const auto storages = static_cast<StorageId>(facts_.graph->storages.size());
  for (StorageId s = 0; s < storages; ++s) {
    const OpId until = facts_.HeldUntil(s);
    if (until == planner::kNoOp || until < at_) continue;
    const Value there = facts_.Before(s, at_);
    if (there >= 0) sure_[there] = 1;
  }
  const planner::Op& op = facts_.graph->ops[at_];
  sure_bytes_ = facts_.graph->static_bytes + op.workspace_bytes;
  for (const StorageId s : op.writes) {
    sure_bytes_ += facts_.graph->storages[s].bytes;
  }
  for (Value v = 0; v < facts_.value_count; ++v) {
    if (sure_[v] != 0) sure_bytes_ += facts_.BytesOf(v);
  }
}

void Window::Build() {
  // Values in the network, and a separate maker for those that may not be
  // recomputed although their op may run again.
  std::vector<Value> values;
  std::vector<int32_t> maker_node(facts_.op_count, -1);
  std::vector<OpId> makers;
  int nodes = 2;
  const auto add = [&](Value v) {
    if (sure_[v] != 0 || node_[v] >= 0) return;
    node_[v] = nodes++;
    values.push_back(v);
    const OpId maker = facts_.maker[v];
    if (facts_.may_remake[v] == 0 || maker_node[maker] >= 0) return;
    maker_node[maker] = nodes++;
    makers.push_back(maker);
  };
  for (Value v = 0; v < facts_.value_count; ++v) {
    if (wanted_[v] != 0) add(v);
  }
  for (size_t i = 0; i < makers.size(); ++i) {
    for (const Value u : facts_.needs[makers[i]]) add(u);
  }

  flow_ = Flow(nodes);
  for (const OpId maker : makers) {
    reruns_.push_back({flow_.AddArc(kSource, maker_node[maker]), maker});
    for (const Value u : facts_.needs[maker]) {
      if (node_[u] < 0) continue;  // surely present
      infinite_.push_back({flow_.AddArc(node_[u], maker_node[maker]), u});
    }
  }
  for (const Value v : values) {
    const bool again = facts_.may_remake[v] != 0;
    const int from = again ? maker_node[facts_.maker[v]] : kSource;
    keeps_.push_back({flow_.AddArc(from, node_[v]), v});
    if (wanted_[v] != 0) {
      infinite_.push_back({flow_.AddArc(node_[v], kSink), v});
    }
  }
  for (const Arc& arc : infinite_) {
    flow_.SetCapacity(arc.arc, Flow::kInfinite);
  }
}

int64_t Window::RoomTaken() const {
  int64_t bytes = sure_bytes_;
  for (const Arc& keep : keeps_) {
    if (branched_[keep.id] == 1) bytes += facts_.BytesOf(keep.id);
  }
  return bytes;
}

int64_t Window::LeastBytes() {
  for (const Arc& rerun : reruns_) flow_.SetCapacity(rerun.arc, 0);
  for (const Arc& keep : keeps_) {
    flow_.SetCapacity(keep.arc, branched_[keep.id] == 1 ? 0
                                : branched_[keep.id] == 0
                                    ? Flow::kInfinite
                                    : Wide{facts_.BytesOf(keep.id)});
  }
  const Wide least = flow_.Solve(kSource, kSink);
  if (least >= Flow::kInfinite) return kNothing;
  return RoomTaken() + static_cast<int64_t>(least < 0 ? 0 : least);
}

StatusOr<int64_t> Window::AddedNs(const Node& leaf, int64_t budget_bytes) {
  const int shift = leaf.shift + leaf.byte_shift;
  if (leaf.shift < 0 || leaf.byte_shift < 0 || leaf.shift > kMostShift ||
      leaf.byte_shift > kMostShift || shift > kMostShift || leaf.price < 0 ||
      leaf.price >= kMostPrice) {
    return InvalidArgument("a price is out of range");
  }
  if (leaf.impossible) return LeastBytes() > budget_bytes ? kNothing : 0;
  for (const Arc& rerun : reruns_) {
    flow_.SetCapacity(rerun.arc, Wide{facts_.rerun_ns[rerun.id]} << shift);
  }
  for (const Arc& keep : keeps_) {
    flow_.SetCapacity(keep.arc,
                      branched_[keep.id] == 1 ? 0
                      : branched_[keep.id] == 0
                          ? Flow::kInfinite
                          : Wide{facts_.BytesOf(keep.id)} * leaf.price);
  }
  const Wide flow = flow_.Solve(kSource, kSink);
  const int64_t taken = RoomTaken();
  if (flow >= Flow::kInfinite || taken > budget_bytes) return kNothing;
  // Times are integers, so what is proven is rounded up.
  const Wide priced = flow - Wide{budget_bytes - taken} * leaf.price;
  if (priced <= 0) return 0;
  const Wide added = (priced + (Wide{1} << shift) - 1) >> shift;
  return static_cast<int64_t>(added);
}

}  // namespace reprise::verify
