// SPDX-License-Identifier: Apache-2.0
//
// The certificate: a lower bound from one window, as a minimum cut.
//
// Fix an op t. Past P = ops before t in base order; N = values made in P that
// t, a later op or the end needs. When t first runs, every v of N is present,
// or its maker runs again later. With binaries S[v] (present) and R[o] (runs
// again), every schedule satisfies
//
//   added time >= sum c(o) R[o]
//   S[v] + R[maker v] >= 1           v in N
//   R[o] <= S[u] + R[maker u]        o in P, u in need(o)
//   sum bytes(v) S[v] <= room = B - static - writes(t) - workspace(t)
//   S = 1 for what must be present: need(t); first lives the program holds;
//   values that may not be recomputed, or are used before recomputation may
//   begin (executors that recompute in the backward only)
//
// Pricing the memory row at L >= 0 per byte leaves a minimum cut:
//
//   source -> R_o          c(o), infinite if o may not run again
//   R_maker(v) -> A_v      L * bytes(v)         (cut: v is saved)
//   A_v -> sink            infinite for v in N
//   A_u -> R_o             infinite for u in need(o)
//
// and D(L) = mincut(L) - L * room is a lower bound for every L. The best L is
// found by intersecting the lines (cost, bytes) of two bracketing cuts until no
// new line appears. The least bytes that must be saved (all c = 0) prove
// budgets impossible. See Lawler's parametric cuts and the "joint graph
// min-cut" of PyTorch's partitioner, which is one such cut without the price.
//
// The price leaves a gap if bytes do not divide well: programs of one window or
// several close it (verify/program.h).
//
// Where the executor has a link to host memory, a value can also be there while
// t runs: H[v], with S + H + R >= 1. Then nothing but need(t) and what the
// program holds is surely present, and with B(o) the time of the first runs
// before o, E1 and E2 the time added before and after t starts,
//
//   added time = E1 + E2,  E1 >= 0,  E2 >= sum c(o) R[o]
//   (out j)  sum out(v) H[v] <= B(t) - B(j + 1) + E1    over v made at j or later
//   (in k)   sum in(v) H[v] <= B(k) - B(t + 1) + E2     over v read next by k or
//                                                       earlier; k <= op_count
//   (host)   sum bytes(v) H[v] <= host bytes
//
// What is on the host only was copied out after its maker and before t starts,
// and comes back after t has ended and before its next reader; while a copy is
// under way it is present. Priced at m_j, n_k (each at most 1 in sum) and h per
// byte, that is the same network: R_o costs c(o) (1 - sum n_k), and v
//
//   min(L * bytes(v), out(v) * sum m_j over j <= maker(v)
//                     + in(v) * sum n_k over k >= next reader + h * bytes(v))
//
// less the right sides at their prices. host_bound.h finds prices.
//
// A bound is the best over cuts at prices that were solved completely, so fewer
// cuts prove less, never more. Nothing here calls should_stop.
//
// One Build is O(past); one Solve is about ten max-flows.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "planner/bounds/max_flow.h"
#include "planner/model/certificate.h"
#include "planner/model/problem.h"

namespace reprise::planner {

// What a cut says about the values made before a window.
struct KeepSet {
  OpId at = 0;
  int64_t cost_ns = 0;
  int64_t saved_bytes = 0;            // without forced values
  std::vector<ValueId> saved = {};    // present when `at` first runs
  std::vector<OpId> recomputed = {};  // run again later
  std::vector<ValueId> hosted = {};   // in host memory when `at` first runs
};

// Returns the keep-set of a window in which `saves(v)` and `runs_again(o)` hold.
template <typename Saves, typename RunsAgain>
KeepSet MakeKeepSet(const Problem& problem, OpId at, const Saves& saves,
                    const RunsAgain& runs_again) {
  KeepSet keep{.at = at};
  for (ValueId v = 0; v < problem.versions.value_count(); ++v) {
    if (!saves(v)) continue;
    keep.saved.push_back(v);
    keep.saved_bytes += problem.BytesOf(v);
  }
  for (OpId o = 0; o < problem.op_count; ++o) {
    if (o == at || !runs_again(o)) continue;
    keep.recomputed.push_back(o);
    keep.cost_ns += problem.rules.rerun_ns[o];
  }
  return keep;
}

// Returns, for each value, whether it is present while `at` first runs in every
// schedule.
std::vector<uint8_t> ForcedAt(const Problem& problem, OpId at);

// What the rows of the link to host memory cost: (out j) and (in k) by op, at
// most 1 in sum each way, and ns per byte of host memory.
struct HostPrices {
  std::vector<std::pair<OpId, double>> outs = {}, ins = {};
  double host_ns_per_byte = 0;
};

// A byte costs price / 2^shift ns.
struct BytePrice {
  int64_t price = 0;
  int shift = 0;
};

struct WindowResult {
  bool impossible = false;
  // No smaller budget is possible, at any cost of time.
  int64_t least_budget_bytes = 0;
  // Proven: every schedule within the budget adds at least this much time; and
  // the price that proves it.
  int64_t added_ns = 0;
  BytePrice price;
  // With a link, the prices of its rows (certificate.h), / 2^price.shift.
  std::vector<verify::Multiplier> rows = {};
  // The same, in ns not rounded, also where it is below 0.
  double value_ns = -std::numeric_limits<double>::infinity();
  // The cheapest cut found that fits the room, if any does.
  bool has_keep_set = false;
  KeepSet keep_set;
  // The next cheaper cut, which does not fit, if there is one: the optimum of
  // the relaxation is a mixture of the two.
  bool has_rich_set = false;
  KeepSet rich_set;
  int64_t room_bytes = 0;  // what a cut may save besides forced values
};

// Returns what a byte of the room is worth, in ns: between its two cuts, which
// there must be.
inline double PriceOf(const WindowResult& window) {
  return static_cast<double>(window.keep_set.cost_ns -
                             window.rich_set.cost_ns) /
         static_cast<double>(window.rich_set.saved_bytes -
                             window.keep_set.saved_bytes);
}

class WindowBound {
 public:
  WindowBound(const Problem& problem, OpId at);

  // Returns the bound for a budget, and the cuts around its room.
  WindowResult Solve(int64_t budget_bytes) {
    return SolveSaving(budget_bytes, {});
  }

  // Like Solve, with these values always saved: for the cuts. Proves nothing
  // about schedules that do not save them. `priced` (by value, at most their
  // bytes; empty: their bytes) is what a price is paid for, so that a cut saves
  // some values rather than others. The room is of bytes in any case.
  WindowResult SolveSaving(int64_t budget_bytes,
                           const std::vector<ValueId>& saved,
                           const std::vector<int64_t>& priced = {});

  // Solve at these prices of the link's rows.
  WindowResult SolveWithHost(int64_t budget_bytes, HostPrices prices) {
    prices_ = std::move(prices);
    return Solve(budget_bytes);
  }
  // Returns by how much a cut breaks the rows of the last prices: outs, ins, and
  // the bytes of the host.
  std::vector<double> Broken(const KeepSet& cut) const;

  // Values that are present while `at` runs in every schedule.
  const std::vector<ValueId>& forced() const { return forced_; }
  // Arcs scanned so far.
  int64_t ticks() const { return flow_.ticks() + build_ticks_; }

 private:
  // Finite sums of the network stay below 2^60, half of MaxFlow::kInfinite.
  static constexpr int kSumBits = 59;
  struct Line {
    int64_t cost_ns = 0;
    int64_t bytes = 0;
    int64_t priced = 0;
    friend bool operator==(const Line&, const Line&) = default;
  };

  // Finds which values later ops need, and which of them are always present.
  void FindForced();
  // Collects the makers from which needed values derive, and the values between
  // them.
  void CollectNodes();
  // Builds the network of the file comment; costs and prices are set later.
  MaxFlow BuildNetwork();
  // Sets what a price is paid for, by value; empty: bytes.
  void SetPriced(const std::vector<int64_t>& priced);
  // Returns the op that reads a value next, from `at` on; op_count if none does.
  OpId NextReader(ValueId v) const;
  // Returns whether an entry of makers_ is an op that may run again.
  bool RunsAgain(size_t maker) const {
    return makers_[maker] >= 0 && problem_.rules.may_rerun[makers_[maker]];
  }
  // Bytes are rounded down if their sum is enormous: the proof stays valid.
  int ByteShift() const;
  // Returns what a cut may save besides what is forced or always saved.
  int64_t Room(int64_t budget_bytes) const;
  // Finds how long copies take, and between which ops they have time.
  void TimeCopies();
  // Sets what the link's rows cost at a scale: all of them, and for each value.
  void PriceCopies(int shift);
  // Solves at a price, with the times of the makers or with none.
  int64_t SolveFlow(BytePrice price, bool timed);
  // Returns a lower bound of the bytes that must be saved, at any cost of time.
  int64_t LeastSavedBytes();
  // Solves at a price; raises best_added_ by its bound.
  Line Cut(BytePrice price, int64_t room);
  // Returns the price at which both lines are equal.
  BytePrice PriceBetween(const Line& cheap, const Line& small) const;
  // Returns the current cut as a keep-set.
  KeepSet ReadCut() const;
  // Returns cost and saved bytes of the current cut.
  Line ReadLine() const;
  // Returns whether the current cut saves this entry of values_.
  bool IsSavedByCut(size_t value) const;
  // Returns the best bound over all prices, and the cuts around the room.
  WindowResult Relax(int64_t budget_bytes);

  const Problem& problem_;
  const OpId at_;
  std::vector<uint8_t> is_forced_, is_needed_;  // by value
  std::vector<ValueId> forced_;
  int64_t fixed_bytes_ = 0;  // static, writes and workspace of t, forced

  // Makers are ops of the past, or -1 - v for a value that may not be
  // recomputed although its op may run again (pinned): that maker has infinite
  // cost.
  std::vector<int64_t> makers_;
  std::vector<ValueId> values_;
  std::vector<int32_t> maker_of_;    // parallel to values_: index in makers_
  std::vector<int32_t> op_node_;     // by op: index in makers_ or -1
  std::vector<int32_t> value_node_;  // by value: index in values_ or -1
  std::vector<int> cost_arc_, save_arc_;
  std::vector<uint8_t> is_saved_;  // parallel to values_: always
  std::vector<int64_t> priced_;    // the same: what a price is paid for
  int64_t total_cost_ = 0, total_priced_ = 0;
  int64_t build_ticks_ = 0;
  // With a link: times, prices; and, in units of 2^-shift ns at the scale of the
  // last cut, what a copy costs by entry of values_, what all rows give, the
  // share of (in) rows, and which values that cut would put on the host.
  std::vector<int64_t> begin_;           // by op: time of first runs before it
  std::vector<int64_t> out_ns_, in_ns_;  // by entry of values_
  std::vector<OpId> reader_;             // the same
  int64_t copy_cost_ = 0;                // of values that cannot be made again
  HostPrices prices_;
  struct Copies {
    std::vector<int64_t> price = {};
    __int128 hidden = 0;
    int64_t ins = 0;
    int shift = 0;
    std::vector<verify::Multiplier> rows = {};
    std::vector<uint8_t> on_host = {};
  };
  Copies copies_;
  int64_t best_added_ = 0;
  double best_value_ns_ = 0;
  BytePrice best_price_;
  std::vector<verify::Multiplier> best_rows_;
  MaxFlow flow_;
};

}  // namespace reprise::planner
