// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/window_bound.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace reprise::planner {
namespace {

constexpr int kSource = 0;
constexpr int kSink = 1;
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

// Returns whether values can be in host memory.
bool HasLink(const Problem& problem) {
  return problem.capabilities.link.host_bytes > 0;
}

// Returns the first op at or after `at` before which re-runs may run.
OpId TriggerFrom(const Problem& problem, OpId at) {
  while (at < problem.op_count && !problem.rules.may_trigger[at]) ++at;
  return at;
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
  const OpId trigger = TriggerFrom(problem, at);
  const bool link = HasLink(problem);
  for (ValueId v = 0; v < versions.value_count(); ++v) {
    if (versions.maker[v] >= at) continue;
    const auto uses = problem.Uses(v);
    const auto next = std::lower_bound(uses.begin(), uses.end(), at);
    if (next == uses.end()) continue;
    // `at` reads it, or it is used before re-runs may begin, or it may not be
    // recomputed.
    forced[v] = *next == at ||
                (!link && (*next < trigger || !problem.rules.may_remake[v]));
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
  const OpId trigger = HasLink(problem_) ? TriggerFrom(problem_, at_) : at_;
  const auto add_value = [&](ValueId v) {
    if (is_forced_[v] || value_node_[v] >= 0) return;
    value_node_[v] = static_cast<int32_t>(values_.size());
    values_.push_back(v);
    const OpId maker = versions.maker[v];
    if (problem_.rules.may_rerun[maker] &&
        (!problem_.rules.may_remake[v] || NextReader(v) < trigger)) {
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
  if (HasLink(problem_)) TimeCopies();
  is_saved_.assign(values_.size(), 0);
  SetPriced({});
  flow.Build();
  build_ticks_ += static_cast<int64_t>(makers_.size() + values_.size());
  return flow;
}

OpId WindowBound::NextReader(ValueId v) const {
  const auto uses = problem_.Uses(v);
  const auto next = std::lower_bound(uses.begin(), uses.end(), at_);
  return next == uses.end() ? problem_.op_count : *next;
}

bool WindowBound::IsSavedByCut(size_t value) const {
  return flow_.OnSourceSide(2 + maker_of_[value]) &&
         !flow_.OnSourceSide(2 + static_cast<int>(makers_.size() + value));
}

// Bytes of values that are always saved are already subtracted from the room.
WindowBound::Line WindowBound::ReadLine() const {
  Line line;
  __int128 host_price = 0;
  for (size_t i = 0; i < makers_.size(); ++i) {
    if (!flow_.OnSourceSide(2 + static_cast<int>(i))) {
      line.cost_ns += problem_.rules.rerun_ns[makers_[i]];
    }
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    if (is_saved_[i] != 0 || !IsSavedByCut(i)) continue;
    if (!copies_.price.empty() && copies_.on_host[i] != 0) {
      host_price += copies_.price[i];
    } else {
      line.bytes += problem_.BytesOf(values_[i]);
      line.priced += priced_[i];
    }
  }
  if (copies_.price.empty()) return line;
  host_price -= static_cast<__int128>(line.cost_ns) * copies_.ins;
  line.cost_ns += static_cast<int64_t>(host_price >> copies_.shift);
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
    if (is_saved_[i] == 0 && !IsSavedByCut(i)) continue;
    const bool hosted = !copies_.price.empty() && copies_.on_host[i] != 0;
    (hosted ? cut.hosted : cut.saved).push_back(values_[i]);
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

int64_t WindowBound::SolveFlow(BytePrice price, bool timed) {
  if (HasLink(problem_)) PriceCopies(price.shift);
  for (size_t i = 0; i < makers_.size(); ++i) {
    if (!RunsAgain(i)) continue;
    const int64_t ns = timed ? problem_.rules.rerun_ns[makers_[i]] : 0;
    flow_.SetCapacity(cost_arc_[i],
                      Shifted(ns, price.shift) - ns * copies_.ins);
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    const int64_t bytes = Shifted(priced_[i], ByteShift());
    int64_t paid = is_saved_[i] != 0 ? 0 : price.price * bytes;
    if (!copies_.price.empty() && copies_.price[i] < paid) {
      copies_.on_host[i] = 1;
      paid = copies_.price[i];
    }
    flow_.SetCapacity(save_arc_[i], paid);
  }
  return flow_.Solve(kSource, kSink);
}

WindowBound::Line WindowBound::Cut(BytePrice price, int64_t room) {
  const int64_t cut = SolveFlow(price, /*timed=*/true);
  const int byte_shift = ByteShift();

  // D = (cut - price * room) / 2^shift. Rounding the room up rounds D down;
  // times are integers, so the result is rounded up.
  __int128 units = room;
  if (byte_shift < 0) units = (units >> -byte_shift) + 1;
  const __int128 scaled = cut - units * price.price - copies_.hidden;
  best_value_ns_ = std::max(
      best_value_ns_, std::ldexp(static_cast<double>(scaled), -price.shift));
  if (scaled > 0) {
    const int shift = price.shift;
    const __int128 added =
        shift >= 0 ? (scaled + ((__int128{1} << shift) - 1)) >> shift
                   : scaled << -shift;
    if (added > best_added_) {
      best_added_ = static_cast<int64_t>(added);
      // The price for bytes before they were shifted.
      best_price_ = {.price = price.price, .shift = price.shift - byte_shift};
      best_rows_ = copies_.rows;
      for (verify::Multiplier& row : best_rows_) row.value <<= -byte_shift;
    }
  }
  return ReadLine();
}

// Returns the price at which both lines are equal, at the finest scale for
// which all sums stay in range.
BytePrice WindowBound::PriceBetween(const Line& cheap,
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
    if (is_saved_[i] != 0) room -= problem_.BytesOf(values_[i]);
  }
  return room;
}

WindowResult WindowBound::Relax(int64_t budget_bytes) {
  WindowResult result;
  const bool link = HasLink(problem_);
  // Anything may be on the host.
  const int64_t room = Room(budget_bytes), least = link ? 0 : LeastSavedBytes();
  result.room_bytes = room;
  result.least_budget_bytes = fixed_bytes_ + least;
  result.impossible = room < 0 || least > room;
  if (result.impossible) return result;
  best_added_ = 0;
  best_price_ = {};
  best_rows_ = {};
  best_value_ns_ = result.value_ns;
  const auto fits = [&] {
    result.has_keep_set = true;
    result.keep_set = ReadCut();
  };
  bool is_over = false;
  const auto prove = [&] {
    result.added_ns = best_added_;
    result.price = best_price_;
    result.rows = best_rows_;
    result.value_ns = best_value_ns_;
    result.has_rich_set = result.has_keep_set && is_over;
    return result;
  };

  // The cheap end: a price so low that bytes hardly matter.
  const int finest = std::min(kSumBits - BitsOf(total_cost_), 58);
  Cut({.price = 0, .shift = finest}, room);
  Line cheap = Cut({.price = 1, .shift = finest}, room);
  if (cheap.bytes <= room) {
    fits();
    return prove();
  }
  const auto exceeds = [&] {
    is_over = true;
    result.rich_set = ReadCut();
  };
  exceeds();
  // The small end: a price so high that time hardly matters. With a link, the
  // price at which the cheap end would prove that everything runs again: prices
  // of rows need a finer scale than times at a price beyond all.
  Line top{.cost_ns = cheap.cost_ns + total_cost_ / 2 + 1,
           .priced = cheap.priced - 1};
  if (link) {
    top = {.cost_ns = cheap.cost_ns + total_cost_ + copy_cost_ + 1,
           .priced = room};
  }
  Line small = Cut(PriceBetween(cheap, top), room);
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
  return prove();
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
  is_saved_.assign(values_.size(), 0);
  for (const ValueId v : saved) {
    if (value_node_[v] >= 0) is_saved_[value_node_[v]] = 1;
  }
  WindowResult result = Relax(budget_bytes);
  SetPriced({});
  return result;
}

}  // namespace reprise::planner
