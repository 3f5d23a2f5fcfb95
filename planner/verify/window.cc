// SPDX-License-Identifier: Apache-2.0
#include "planner/verify/window.h"

#include <algorithm>

namespace reprise::verify {
namespace {

constexpr int kSource = 0, kSink = 1;
constexpr int kMostShift = 60;
constexpr int64_t kMostPrice = int64_t{1} << 62;

}  // namespace

Window::Window(const Facts& facts, std::span<const OpId> at) : facts_(facts) {
  for (const OpId o : at) {
    places_.push_back({.at = o});
    FindSurelyPresent(places_.back());
  }
  Build();
}

void Window::FindSurelyPresent(Place& place) const {
  const OpId at = place.at;
  place.sure.assign(facts_.value_count, 0);
  place.wanted.assign(facts_.value_count, 0);
  const OpId trigger = facts_.TriggerFrom(at);
  for (Value v = 0; v < facts_.value_count; ++v) {
    if (facts_.maker[v] >= at) continue;
    for (const OpId use : facts_.uses[v]) {
      if (use < at) continue;
      place.wanted[v] = 1;
      // t reads it, or it is read before re-runs are possible, or it may not be
      // recomputed.
      if (use == at || use < trigger || facts_.may_remake[v] == 0) {
        place.sure[v] = 1;
      }
      break;
    }
  }
  const auto storages = static_cast<StorageId>(facts_.graph->storages.size());
  for (StorageId s = 0; s < storages; ++s) {
    const OpId until = facts_.HeldUntil(s);
    if (until == planner::kNoOp || until < at) continue;
    const Value there = facts_.Before(s, at);
    if (there >= 0) place.sure[there] = 1;
  }
  const planner::Op& op = facts_.graph->ops[at];
  place.sure_bytes = facts_.graph->static_bytes + op.workspace_bytes;
  for (const StorageId s : op.writes) {
    place.sure_bytes += facts_.graph->storages[s].bytes;
  }
  for (Value v = 0; v < facts_.value_count; ++v) {
    if (place.sure[v] != 0) place.sure_bytes += facts_.BytesOf(v);
  }
}

void Window::Build() {
  struct Link {
    int from, to;
  };
  std::vector<Link> reruns, keeps, infinite;
  int nodes = 2;
  for (size_t k = 0; k < places_.size(); ++k) {
    Place& place = places_[k];
    place.node.assign(facts_.value_count, -1);
    place.maker.assign(facts_.op_count, -1);
    // Values in the network, and makers of those that may be recomputed.
    std::vector<Value> values;
    std::vector<OpId> makers;
    const auto add = [&](Value v) {
      if (place.sure[v] != 0 || place.node[v] >= 0) return;
      place.node[v] = nodes++;
      values.push_back(v);
      const OpId maker = facts_.maker[v];
      if (facts_.may_remake[v] == 0 || place.maker[maker] >= 0) return;
      place.maker[maker] = nodes++;
      makers.push_back(maker);
    };
    for (Value v = 0; v < facts_.value_count; ++v) {
      if (place.wanted[v] != 0) add(v);
    }
    for (size_t i = 0; i < makers.size(); ++i) {
      for (const Value u : facts_.needs[makers[i]]) add(u);
    }
    // The last window before this one that has the node.
    const auto before = [&](auto member, int32_t id) {
      for (size_t j = k; j-- > 0;) {
        if ((places_[j].*member)[id] >= 0) return (places_[j].*member)[id];
      }
      return -1;
    };
    for (const OpId maker : makers) {
      const int earlier = before(&Place::maker, maker);
      if (earlier >= 0) {
        infinite.push_back({earlier, place.maker[maker]});
      } else {
        reruns.push_back({kSource, place.maker[maker]});
        reruns_.push_back({0, maker, k});
      }
      for (const Value u : facts_.needs[maker]) {
        if (place.node[u] < 0) continue;  // surely present
        infinite.push_back({place.node[u], place.maker[maker]});
      }
    }
    for (const Value v : values) {
      const bool again = facts_.may_remake[v] != 0;
      keeps.push_back(
          {again ? place.maker[facts_.maker[v]] : kSource, place.node[v]});
      keeps_.push_back({0, v, k});
      if (place.wanted[v] != 0) infinite.push_back({place.node[v], kSink});
      const int earlier = before(&Place::node, v);
      if (earlier >= 0) infinite.push_back({earlier, place.node[v]});
    }
  }
  flow_ = Flow(nodes);
  for (size_t i = 0; i < reruns.size(); ++i) {
    reruns_[i].arc = flow_.AddArc(reruns[i].from, reruns[i].to);
  }
  for (size_t i = 0; i < keeps.size(); ++i) {
    keeps_[i].arc = flow_.AddArc(keeps[i].from, keeps[i].to);
  }
  for (const Link& link : infinite) {
    flow_.SetCapacity(flow_.AddArc(link.from, link.to), Flow::kInfinite);
  }
}

int64_t Window::LeastBytes() {
  for (const Arc& rerun : reruns_) flow_.SetCapacity(rerun.arc, 0);
  for (const Arc& keep : keeps_) {
    flow_.SetCapacity(keep.arc, Wide{facts_.BytesOf(keep.id)});
  }
  const Wide least = flow_.Solve(kSource, kSink);
  if (least >= Flow::kInfinite) return kNothing;
  return places_[0].sure_bytes + static_cast<int64_t>(least < 0 ? 0 : least);
}

StatusOr<int64_t> Window::AddedNs(const Node& leaf, int64_t budget_bytes) {
  const int shift = leaf.shift + leaf.byte_shift;
  std::vector<int64_t> prices(places_.size(), leaf.price);
  bool in_range = leaf.shift >= 0 && leaf.byte_shift >= 0 &&
                  leaf.shift <= kMostShift && leaf.byte_shift <= kMostShift &&
                  shift <= kMostShift;
  if (places_.size() > 1) {
    // The room of every window has a row.
    std::fill(prices.begin(), prices.end(), 0);
    for (const Multiplier& room : leaf.multipliers) {
      in_range = in_range && room.row >= 0 &&
                 room.row < static_cast<int32_t>(places_.size());
      if (in_range) prices[room.row] = room.value;
    }
  }
  for (const int64_t price : prices) {
    in_range = in_range && price >= 0 && price < kMostPrice;
  }
  if (!in_range) return InvalidArgument("a price is out of range");
  for (const Arc& rerun : reruns_) {
    flow_.SetCapacity(rerun.arc, Wide{facts_.rerun_ns[rerun.id]} << shift);
  }
  for (const Arc& keep : keeps_) {
    flow_.SetCapacity(keep.arc,
                      Wide{facts_.BytesOf(keep.id)} * prices[keep.window]);
  }
  Wide priced = flow_.Solve(kSource, kSink);
  if (priced >= Flow::kInfinite) return kNothing;
  for (size_t k = 0; k < places_.size(); ++k) {
    const int64_t taken = places_[k].sure_bytes;
    if (taken > budget_bytes) return kNothing;
    priced -= Wide{budget_bytes - taken} * prices[k];
  }
  // Times are integers, so what is proven is rounded up.
  if (priced <= 0) return 0;
  const Wide added = (priced + (Wide{1} << shift) - 1) >> shift;
  return static_cast<int64_t>(added);
}

}  // namespace reprise::verify
