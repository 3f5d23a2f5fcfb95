// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/window_bound.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace reprise::planner {
namespace {

constexpr int kSource = 0;
constexpr int kSink = 1;
// Finite sums of the network stay below 2^60, half of MaxFlow::kInfinite.
constexpr int kSumBits = 59;
constexpr int kMaxCuts = 40;
// Above every finite sum, yet safe to add up.
constexpr int64_t kForbidden = MaxFlow::kInfinite;

int BitsOf(int64_t value) {
  return std::bit_width(static_cast<uint64_t>(value));
}

// value * 2^shift, rounded down for negative shifts.
int64_t Shifted(int64_t value, int shift) {
  return shift >= 0 ? value << shift : value >> -shift;
}

}  // namespace

WindowBound::WindowBound(const Problem& problem, OpId at)
    : problem_(problem),
      at_(at),
      is_forced_(ForcedAt(problem, at)),
      is_needed_(problem.versions.value_count(), 0),
      op_node_(problem.op_count, -1),
      value_node_(problem.versions.value_count(), -1),
      flow_((FindForced(), CollectNodes(), BuildNetwork())) {}

std::vector<uint8_t> ForcedAt(const Problem& problem, OpId at) {
  const Versions& versions = problem.versions;
  std::vector<uint8_t> forced(versions.value_count(), 0);
  // Uses before this op precede any possible re-run.
  OpId trigger = at;
  while (trigger < problem.op_count && !problem.rules.may_trigger[trigger]) {
    ++trigger;
  }
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    if (versions.maker[v] >= at) continue;
    const auto uses = problem.Uses(v);
    const auto next = std::lower_bound(uses.begin(), uses.end(), at);
    if (next == uses.end()) continue;
    // `at` reads it, or it is used before re-runs may begin, or it may not be
    // recomputed.
    forced[v] = *next == at || *next < trigger || !problem.rules.may_remake[v];
  }
  // First lives that the program holds while `at` runs, in the version that is
  // current in base order.
  for (size_t s = 0; s < problem.bytes.size(); ++s) {
    const OpId held = problem.rules.held_until[s];
    if (held == kNoOp || held < at) continue;
    ValueId current = kNoValue;
    for (ValueId v = versions.first_value[s]; v < versions.first_value[s + 1];
         ++v) {
      if (versions.maker[v] < at) current = v;
    }
    if (current != kNoValue) forced[current] = 1;
  }
  return forced;
}

void WindowBound::FindForced() {
  fixed_bytes_ = problem_.static_bytes + problem_.workspace[at_];
  for (const StorageId s : problem_.Writes(at_)) {
    fixed_bytes_ += problem_.bytes[s];
  }
  for (ValueId v = 0; v < problem_.versions.value_count(); ++v) {
    const auto uses = problem_.Uses(v);
    is_needed_[v] =
        problem_.versions.maker[v] < at_ && !uses.empty() && uses.back() >= at_;
    if (!is_forced_[v]) continue;
    forced_.push_back(v);
    fixed_bytes_ += problem_.BytesOf(v);
  }
  build_ticks_ += problem_.versions.value_count();
}

// Collects the makers from which needed values derive, and the values between
// them.
void WindowBound::CollectNodes() {
  const Versions& versions = problem_.versions;
  const auto add_value = [&](ValueId v) {
    if (is_forced_[v] || value_node_[v] >= 0) return;
    value_node_[v] = static_cast<int32_t>(values_.size());
    values_.push_back(v);
    const OpId maker = versions.maker[v];
    if (problem_.rules.may_rerun[maker] && !problem_.rules.may_remake[v]) {
      maker_of_.push_back(static_cast<int32_t>(makers_.size()));
      makers_.push_back(-1 - int64_t{v});
      return;
    }
    if (op_node_[maker] < 0) {
      op_node_[maker] = static_cast<int32_t>(makers_.size());
      makers_.push_back(maker);
    }
    maker_of_.push_back(op_node_[maker]);
  };
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    if (is_needed_[v]) add_value(v);
  }
  // `makers_` grows during this loop: a breadth-first search backwards.
  for (size_t i = 0; i < makers_.size(); ++i) {
    if (makers_[i] < 0) continue;
    const OpId maker = static_cast<OpId>(makers_[i]);
    if (!problem_.rules.may_rerun[maker]) continue;  // its inputs do not matter
    for (const ValueId u : versions.Need(maker)) add_value(u);
  }
}

MaxFlow WindowBound::BuildNetwork() {
  const Versions& versions = problem_.versions;
  const auto maker_node = [](size_t i) { return 2 + static_cast<int>(i); };
  const auto value_node = [&](size_t i) {
    return 2 + static_cast<int>(makers_.size() + i);
  };
  MaxFlow flow(2 + static_cast<int>(makers_.size() + values_.size()));
  for (size_t i = 0; i < makers_.size(); ++i) {
    const OpId maker = static_cast<OpId>(makers_[i]);
    cost_arc_.push_back(flow.AddArc(kSource, maker_node(i),
                                    RunsAgain(i) ? 0 : MaxFlow::kInfinite));
    if (!RunsAgain(i)) continue;
    total_cost_ += problem_.rules.rerun_ns[maker];
    for (const ValueId u : versions.Need(maker)) {
      if (value_node_[u] < 0) continue;
      flow.AddArc(value_node(value_node_[u]), maker_node(i),
                  MaxFlow::kInfinite);
      ++build_ticks_;
    }
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    save_arc_.push_back(
        flow.AddArc(maker_node(maker_of_[i]), value_node(i), 0));
    if (is_needed_[values_[i]]) {
      flow.AddArc(value_node(i), kSink, MaxFlow::kInfinite);
    }
  }
  fix_.assign(values_.size(), Fix::kFree);
  SetPriced({});
  flow.Build();
  build_ticks_ += static_cast<int64_t>(makers_.size() + values_.size());
  return flow;
}

bool WindowBound::IsSavedByCut(size_t value) const {
  return flow_.OnSourceSide(2 + maker_of_[value]) &&
         !flow_.OnSourceSide(2 + static_cast<int>(makers_.size() + value));
}

// Bytes of values fixed as saved are already subtracted from the room.
WindowBound::Line WindowBound::ReadLine() const {
  Line line;
  for (size_t i = 0; i < makers_.size(); ++i) {
    if (!flow_.OnSourceSide(2 + static_cast<int>(i))) {
      line.cost_ns += problem_.rules.rerun_ns[makers_[i]];
    }
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    if (fix_[i] == Fix::kFree && IsSavedByCut(i)) {
      line.bytes += problem_.BytesOf(values_[i]);
      line.priced += priced_[i];
    }
  }
  return line;
}

KeepSet WindowBound::ReadCut() const {
  KeepSet cut{.at = at_};
  const Line line = ReadLine();
  cut.cost_ns = line.cost_ns;
  cut.saved_bytes = line.bytes;
  for (size_t i = 0; i < makers_.size(); ++i) {
    if (!flow_.OnSourceSide(2 + static_cast<int>(i))) {
      cut.recomputed.push_back(static_cast<OpId>(makers_[i]));
    }
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    if (fix_[i] == Fix::kSaved || IsSavedByCut(i)) {
      cut.saved.push_back(values_[i]);
    }
  }
  return cut;
}

int64_t WindowBound::LeastSavedBytes() {
  const int64_t least = SolveFlow({.price = 1}, /*timed=*/false);
  return least >= kForbidden ? kForbidden : Shifted(least, -ByteShift());
}

int WindowBound::ByteShift() const {
  return std::min(0, kSumBits - BitsOf(total_priced_));
}

int64_t WindowBound::SolveFlow(Price price, bool timed) {
  for (size_t i = 0; i < makers_.size(); ++i) {
    if (!RunsAgain(i)) continue;
    const int64_t ns = timed ? problem_.rules.rerun_ns[makers_[i]] : 0;
    flow_.SetCapacity(cost_arc_[i], Shifted(ns, price.shift));
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    const int64_t bytes = Shifted(priced_[i], ByteShift());
    flow_.SetCapacity(save_arc_[i], fix_[i] == Fix::kFree ? price.price * bytes
                                    : fix_[i] == Fix::kSaved ? 0
                                                             : kForbidden);
  }
  return flow_.Solve(kSource, kSink);
}

WindowBound::Line WindowBound::Cut(Price price, int64_t room) {
  const int64_t cut = SolveFlow(price, /*timed=*/true);
  const int byte_shift = ByteShift();

  // D = (cut - price * room) / 2^shift. Rounding the room up rounds D down;
  // times are integers, so the result is rounded up.
  __int128 units = room;
  if (byte_shift < 0) units = (units >> -byte_shift) + 1;
  const __int128 scaled = cut - units * price.price;
  if (scaled > 0) {
    const int shift = price.shift;
    const __int128 added =
        shift >= 0 ? (scaled + ((__int128{1} << shift) - 1)) >> shift
                   : scaled << -shift;
    if (added > best_added_) {
      best_added_ = static_cast<int64_t>(added);
      // The price for bytes before they were shifted.
      best_price_ = {.price = price.price, .shift = price.shift - byte_shift};
    }
  }
  return ReadLine();
}

// Returns the price at which both lines are equal, at the finest scale for
// which all sums stay in range.
WindowBound::Price WindowBound::PriceBetween(const Line& cheap,
                                             const Line& small) const {
  const int64_t cost = small.cost_ns - cheap.cost_ns;
  const int64_t bytes = std::max<int64_t>(1, cheap.priced - small.priced);
  const int byte_bits = std::min(kSumBits, BitsOf(total_priced_));
  // price < 2^(bits(cost) - bits(bytes) + 1 + shift)
  const int price_bits = BitsOf(cost) - BitsOf(bytes) + 1;
  int shift = std::min(kSumBits - BitsOf(total_cost_),
                       kSumBits - byte_bits - price_bits);
  shift = std::min(shift, 58);
  const __int128 numerator = shift >= 0 ? static_cast<__int128>(cost) << shift
                                        : static_cast<__int128>(cost >> -shift);
  __int128 price = numerator / bytes;
  const int64_t most = int64_t{1} << (kSumBits - byte_bits);
  if (price > most) price = most;
  return {.price = static_cast<int64_t>(price), .shift = shift};
}

int64_t WindowBound::Room(int64_t budget_bytes) const {
  int64_t room = budget_bytes - fixed_bytes_;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (fix_[i] == Fix::kSaved) room -= problem_.BytesOf(values_[i]);
  }
  return room;
}

// Returns the best bound of the problem under the current fixes, over all
// prices.
WindowBound::Relaxed WindowBound::Relax(int64_t budget_bytes) {
  Relaxed result;
  const int64_t room = Room(budget_bytes);
  if (room < 0 || LeastSavedBytes() > room) return result;
  result.possible = true;
  best_added_ = 0;
  best_price_ = {};
  std::vector<uint8_t> saved_by_cheap(values_.size(), 0);
  std::vector<uint8_t> saved_by_small(values_.size(), 0);
  const auto remember = [&](std::vector<uint8_t>& saved) {
    for (size_t i = 0; i < values_.size(); ++i) saved[i] = IsSavedByCut(i);
  };
  const auto fits = [&] {
    remember(saved_by_small);
    result.fits = true;
    result.keep_set = ReadCut();
  };

  // The cheap end: a price so low that bytes hardly matter.
  const int finest = std::min(kSumBits - BitsOf(total_cost_), 58);
  Cut({.price = 0, .shift = finest}, room);
  Line cheap = Cut({.price = 1, .shift = finest}, room);
  if (cheap.bytes <= room) {
    remember(saved_by_cheap);
    fits();
    result.added_ns = best_added_;
    result.price = best_price_;
    return result;
  }
  const auto exceeds = [&] {
    remember(saved_by_cheap);
    result.is_over = true;
    result.rich_set = ReadCut();
  };
  exceeds();
  // The small end: a price so high that time hardly matters.
  Line small =
      Cut(PriceBetween(cheap, {.cost_ns = cheap.cost_ns + total_cost_ / 2 + 1,
                               .priced = cheap.priced - 1}),
          room);
  remember(saved_by_small);
  if (small.bytes <= room) fits();
  for (int cuts = 0; cuts < kMaxCuts; ++cuts) {
    if (small.cost_ns <= cheap.cost_ns || small.priced >= cheap.priced) break;
    const Line line = Cut(PriceBetween(cheap, small), room);
    if (line == cheap || line == small) break;
    if (line.bytes <= room) {
      if (line.cost_ns >= small.cost_ns) break;
      small = line;
      fits();
    } else {
      if (line.priced >= cheap.priced) break;
      cheap = line;
      exceeds();
    }
  }
  result.added_ns = best_added_;
  result.price = best_price_;
  // Branch on the largest value about which the two ends disagree.
  for (size_t i = 0; i < values_.size(); ++i) {
    if (fix_[i] != Fix::kFree || saved_by_cheap[i] == saved_by_small[i]) {
      continue;
    }
    if (result.branch < 0 || problem_.BytesOf(values_[i]) >
                                 problem_.BytesOf(values_[result.branch])) {
      result.branch = static_cast<int32_t>(i);
    }
  }
  return result;
}

void WindowBound::SetPriced(const std::vector<int64_t>& priced) {
  priced_.resize(values_.size());
  total_priced_ = 0;
  for (size_t i = 0; i < values_.size(); ++i) {
    const ValueId v = values_[i];
    priced_[i] = priced.empty() ? problem_.BytesOf(v) : priced[v];
    total_priced_ += priced_[i];
  }
}

WindowResult WindowBound::SolveSaving(int64_t budget_bytes,
                                      const std::vector<ValueId>& saved,
                                      const std::vector<int64_t>& priced) {
  SetPriced(priced);
  std::fill(fix_.begin(), fix_.end(), Fix::kFree);
  for (const ValueId v : saved) {
    if (value_node_[v] >= 0) fix_[value_node_[v]] = Fix::kSaved;
  }
  WindowResult result = SolveFixed(budget_bytes);
  SetPriced({});
  return result;
}

WindowResult WindowBound::SolveFixed(int64_t budget_bytes) {
  WindowResult result;
  result.least_budget_bytes = fixed_bytes_ + LeastSavedBytes();
  result.room_bytes = Room(budget_bytes);
  Relaxed relaxed = Relax(budget_bytes);
  result.impossible = !relaxed.possible;
  result.added_ns = relaxed.added_ns;
  result.has_keep_set = relaxed.fits;
  result.keep_set = std::move(relaxed.keep_set);
  result.has_rich_set = relaxed.fits && relaxed.is_over;
  result.rich_set = std::move(relaxed.rich_set);
  return result;
}

WindowLeaf WindowBound::Leaf(int64_t budget_bytes, const Fixes& fixes) {
  std::fill(fix_.begin(), fix_.end(), Fix::kFree);
  for (const auto& [v, saved] : fixes) {
    if (value_node_[v] >= 0) {
      fix_[value_node_[v]] = saved ? Fix::kSaved : Fix::kNotSaved;
    }
  }
  const Relaxed relaxed = Relax(budget_bytes);
  return {.impossible = !relaxed.possible,
          .added_ns = relaxed.added_ns,
          .price = relaxed.price.price,
          .shift = relaxed.price.shift,
          .branch = relaxed.branch < 0 ? kNoValue : values_[relaxed.branch]};
}

WindowResult WindowBound::SolveExactly(int64_t budget_bytes, int64_t enough_ns,
                                       int64_t most_ticks) {
  const int64_t begin = ticks();
  struct Node {
    int64_t added_ns;  // proven for everything below it
    std::vector<std::pair<int32_t, Fix>> fixes;
  };
  const auto later = [](const Node& a, const Node& b) {
    if (a.added_ns != b.added_ns) return a.added_ns > b.added_ns;
    return a.fixes.size() < b.fixes.size();
  };
  WindowResult result = Solve(budget_bytes);
  if (result.impossible) return result;
  // `best` is the cost of the cheapest known solution, `closed` what is proven
  // for nodes that cannot be split further.
  int64_t best = result.has_keep_set ? result.keep_set.cost_ns : kForbidden;
  int64_t closed = kForbidden;
  std::vector<Node> open = {{result.added_ns, {}}};
  while (!open.empty() && open.front().added_ns < std::min(best, enough_ns) &&
         ticks() - begin <= most_ticks) {
    std::pop_heap(open.begin(), open.end(), later);
    const Node node = std::move(open.back());
    open.pop_back();
    std::fill(fix_.begin(), fix_.end(), Fix::kFree);
    for (const auto& [value, fix] : node.fixes) fix_[value] = fix;
    Relaxed relaxed = Relax(budget_bytes);
    if (!relaxed.possible) continue;
    if (relaxed.fits && relaxed.keep_set.cost_ns < best) {
      best = relaxed.keep_set.cost_ns;
      result.has_keep_set = true;
      result.keep_set = std::move(relaxed.keep_set);
    }
    const int64_t added = std::max(node.added_ns, relaxed.added_ns);
    if (added >= best) continue;
    if (relaxed.branch < 0) {
      closed = std::min(closed, added);
      continue;
    }
    for (const Fix fix : {Fix::kSaved, Fix::kNotSaved}) {
      Node child{added, node.fixes};
      child.fixes.emplace_back(relaxed.branch, fix);
      open.push_back(std::move(child));
      std::push_heap(open.begin(), open.end(), later);
    }
  }
  int64_t proven = std::min(best, closed);
  if (!open.empty()) proven = std::min(proven, open.front().added_ns);
  if (proven >= kForbidden) proven = 0;
  result.added_ns = std::max(result.added_ns, proven);
  return result;
}

}  // namespace reprise::planner
