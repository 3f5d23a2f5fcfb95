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
  place.early.assign(facts_.value_count, 0);
  const bool link = facts_.executor.link.host_bytes > 0;
  const OpId trigger = facts_.TriggerFrom(at);
  for (Value v = 0; v < facts_.value_count; ++v) {
    if (facts_.maker[v] >= at) continue;
    for (const OpId use : facts_.uses[v]) {
      if (use < at) continue;
      place.wanted[v] = 1;
      // t reads it, or it is read before re-runs are possible, or it may not be
      // recomputed.
      place.early[v] = use < trigger;
      if (use == at ||
          (!link && (use < trigger || facts_.may_remake[v] == 0))) {
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
      if (facts_.may_remake[v] == 0 || place.early[v] != 0 ||
          place.maker[maker] >= 0) {
        return;
      }
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
      const bool again = facts_.may_remake[v] != 0 && place.early[v] == 0;
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

StatusOr<Window::LinkPrices> Window::PriceLink(const Node& leaf,
                                               Wide unit) const {
  const planner::Link& link = facts_.executor.link;
  const OpId at = places_[0].at, end = facts_.op_count;
  std::vector<Wide> begin = {0};  // by op: time of first runs before it
  for (const planner::Op& op : facts_.graph->ops) {
    begin.push_back(begin.back() + op.time_ns);
  }
  LinkPrices prices;
  // By op: (out) rows up to it; and by op, op_count for none: (in) rows from it.
  std::vector<Wide> out(end, 0), in(end + 2, 0);
  Wide outs = 0, host = 0;
  for (const Multiplier& row : leaf.multipliers) {
    if (row.value < 0 || row.value >= kMostPrice) {
      return InvalidArgument("a row's price is out of range");
    }
    const int64_t k = int64_t{row.row} - end;
    if (row.row >= 0 && row.row < at) {
      out[row.row] += row.value;
      outs += row.value;
      prices.given += (begin[at] - begin[row.row + 1]) * row.value;
    } else if (k > at && k <= end) {
      in[k] += row.value;
      prices.ins += row.value;
      prices.given += (begin[k] - begin[at + 1]) * row.value;
    } else if (k == end + 1) {
      host += row.value;
      prices.given += Wide{link.host_bytes} * row.value;
    } else {
      return InvalidArgument("there is no such row");
    }
    if (outs > unit || prices.ins > unit || host >= kMostPrice) {
      return InvalidArgument("the rows' prices are too high");
    }
  }
  for (OpId o = 1; o < end; ++o) out[o] += out[o - 1];
  for (OpId o = end; o-- > 0;) in[o] += in[o + 1];
  const auto copy = [&](int64_t bytes, int64_t rate) {
    constexpr Wide kMost = Wide{1} << 62;
    const Wide scaled = Wide{bytes} * 1000000000;
    if (rate <= 0) return bytes > 0 ? kMost : Wide{link.latency_ns};
    const Wide time = scaled / rate + (scaled % rate != 0) + link.latency_ns;
    return time < kMost ? time : kMost;
  };
  for (Value v = 0; v < facts_.value_count; ++v) {
    OpId reader = end;
    for (const OpId use : facts_.uses[v]) {
      if (use < at) continue;
      reader = use;
      break;
    }
    const int64_t bytes = facts_.BytesOf(v);
    prices.of_value.push_back(
        out[facts_.maker[v]] * copy(bytes, link.out_bytes_per_s) +
        in[reader] * copy(bytes, link.in_bytes_per_s) + host * bytes);
  }
  return prices;
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
  const bool link = facts_.executor.link.host_bytes > 0;
  LinkPrices of_link;
  if (link) {
    if (places_.size() > 1) {
      return InvalidArgument("several windows say nothing about host memory");
    }
    ASSIGN_OR_RETURN(of_link, PriceLink(leaf, Wide{1} << shift));
  }
  for (const Arc& rerun : reruns_) {
    flow_.SetCapacity(rerun.arc, facts_.rerun_ns[rerun.id] *
                                     ((Wide{1} << shift) - of_link.ins));
  }
  for (const Arc& keep : keeps_) {
    Wide price = Wide{facts_.BytesOf(keep.id)} * prices[keep.window];
    if (link) price = std::min(price, of_link.of_value[keep.id]);
    flow_.SetCapacity(keep.arc, price);
  }
  Wide priced = flow_.Solve(kSource, kSink);
  if (priced >= Flow::kInfinite) return kNothing;
  for (size_t k = 0; k < places_.size(); ++k) {
    const int64_t taken = places_[k].sure_bytes;
    if (taken > budget_bytes) return kNothing;
    priced -= Wide{budget_bytes - taken} * prices[k];
  }
  priced -= of_link.given;
  // Times are integers, so what is proven is rounded up.
  if (priced <= 0) return 0;
  const Wide added = (priced + (Wide{1} << shift) - 1) >> shift;
  return static_cast<int64_t>(added);
}

}  // namespace reprise::verify
