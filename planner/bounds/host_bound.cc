// SPDX-License-Identifier: Apache-2.0
#include "planner/bounds/host_bound.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <span>

#include "planner/bounds/certificate.h"
#include "planner/bounds/certify.h"

namespace reprise::planner {
namespace {

constexpr int kRows = 8;
// Steps at the best window; another one gets a few first.
constexpr int kFirstSteps = 10, kMostSteps = 600;
constexpr int kWindows = 12;
// What the widest rows are tried at. The smallest says that copies are as good
// as forbidden if they take for ever.
constexpr double kFirstPrices[] = {0, 1e-6, 0.03, 0.1, 0.25, 0.5};
// After so many steps without gain they get shorter.
constexpr int kIdleSteps = 8;
// The first step is to raise the bound by this part of the time, the last by
// that.
constexpr double kFirstRise = 0.02, kLastRise = 2e-5;

// Makes prices valid: none is negative, and they sum to at most 1.
void Limit(std::span<double> prices) {
  for (double& price : prices) price = std::max(0.0, price);
  const double sum = std::accumulate(prices.begin(), prices.end(), 0.0);
  for (double& price : prices) price /= std::max(1.0, sum);
}

// PriceSearch: the prices of one window.
class PriceSearch {
 public:
  PriceSearch(const Problem& problem, OpId at, int64_t budget_bytes)
      : at_(at), budget_bytes_(budget_bytes), window_(problem, at) {
    begin_.push_back(0);
    for (const int64_t ns : problem.time_ns) {
      begin_.push_back(begin_.back() + ns);
    }
    // Rows at which equal parts of the time begin, and end.
    for (int i = 0; i < kRows; ++i) {
      AddRow(outs_, begin_[at] / kRows * i, 0, at);
      AddRow(ins_, begin_.back() - (begin_.back() - begin_[at + 1]) / kRows * i,
             at + 1, problem.op_count + 1);
    }
    const Link& link = problem.capabilities.link;
    host_scale_ =
        1e9 / static_cast<double>(std::max<int64_t>(
                  1, std::min(link.out_bytes_per_s, link.in_bytes_per_s)));
    prices_.assign(outs_.size() + ins_.size() + 1, 0.0);
    best_prices_ = prices_;
    const auto base_ns = static_cast<double>(problem.base.time_ns);
    rise_ns_ = kFirstRise * base_ns;
    least_rise_ns_ = kLastRise * base_ns;
  }

  // Tries a few prices of the widest rows.
  void Begin() {
    for (const double out : kFirstPrices) {
      for (const double in : kFirstPrices) {
        if (!outs_.empty()) prices_[0] = out;
        if (!ins_.empty()) prices_[outs_.size()] = in;
        Try();
      }
    }
    prices_ = best_prices_;
    result_ = Try();
  }

  // Takes one step; returns whether another one may gain.
  bool Step() {
    if (result_.impossible || rise_ns_ < least_rise_ns_) return false;
    std::vector<double> slope = SlopeAt(result_);
    // Prices stay at 0 where they would fall: that is no part of the step.
    for (size_t k = 0; k < slope.size(); ++k) {
      if (prices_[k] <= 0 && slope[k] < 0) slope[k] = 0;
    }
    const double square =
        std::inner_product(slope.begin(), slope.end(), slope.begin(), 0.0);
    if (square <= 0) return false;
    const double length = (best_value_ + rise_ns_ - result_.value_ns) / square;
    for (size_t k = 0; k < prices_.size(); ++k) {
      prices_[k] += length * slope[k];
    }
    Limit({prices_.data(), outs_.size()});
    Limit({prices_.data() + outs_.size(), ins_.size()});
    prices_.back() = std::max(0.0, prices_.back());
    const double before = best_value_;
    result_ = Try();
    if (best_value_ > before + rise_ns_ / 8) {
      idle_ = 0;
    } else if (++idle_ == kIdleSteps) {
      // Too far: from the best again, in shorter steps.
      idle_ = 0;
      rise_ns_ /= 2;
      prices_ = best_prices_;
      result_ = Try();
    }
    return true;
  }

  const HostBound& best() const { return best_; }
  int64_t ticks() const { return window_.ticks(); }

 private:
  // Adds the row whose time is next to `ns`, unless it is there.
  void AddRow(std::vector<OpId>& rows, int64_t ns, OpId from, OpId end) const {
    if (from >= end) return;
    const auto found =
        std::lower_bound(begin_.begin() + from, begin_.begin() + end, ns);
    const OpId row =
        std::min<OpId>(end - 1, static_cast<OpId>(found - begin_.begin()));
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) {
      rows.push_back(row);
    }
  }

  // Solves the window at the current prices; notes what is better.
  WindowResult Try() {
    HostPrices prices{.host_ns_per_byte = prices_.back() * host_scale_};
    for (size_t k = 0; k < outs_.size(); ++k) {
      prices.outs.emplace_back(outs_[k], prices_[k]);
    }
    for (size_t k = 0; k < ins_.size(); ++k) {
      prices.ins.emplace_back(ins_[k], prices_[outs_.size() + k]);
    }
    WindowResult result = window_.SolveWithHost(budget_bytes_, prices);
    if (result.added_ns > best_.added_ns) {
      best_ = {.added_ns = result.added_ns, .at = at_, .window = result};
    }
    if (result.value_ns > best_value_) {
      best_value_ = result.value_ns;
      best_prices_ = prices_;
    }
    return result;
  }

  // Returns by how much the mixture of the two cuts that fills the room breaks
  // the rows.
  std::vector<double> SlopeAt(const WindowResult& result) const {
    double kept = result.has_keep_set ? 1 : 0;
    if (result.has_keep_set && result.has_rich_set) {
      const auto rich = static_cast<double>(result.rich_set.saved_bytes);
      kept = (rich - static_cast<double>(result.room_bytes)) /
             (rich - static_cast<double>(result.keep_set.saved_bytes));
    }
    std::vector<double> slope = window_.Broken(result.keep_set);
    const std::vector<double> rich = window_.Broken(result.rich_set);
    for (size_t k = 0; k < slope.size(); ++k) {
      slope[k] = kept * slope[k] + (1 - kept) * rich[k];
    }
    slope.back() *= host_scale_;
    return slope;
  }

  const OpId at_;
  const int64_t budget_bytes_;
  WindowBound window_;
  std::vector<int64_t> begin_;    // by op: time of first runs before it
  std::vector<OpId> outs_, ins_;  // rows
  double host_scale_ = 1;         // ns per byte at a price of 1
  std::vector<double> prices_, best_prices_;  // of outs_, ins_ and the host
  WindowResult result_;                       // at prices_
  double best_value_ = -std::numeric_limits<double>::infinity();
  // By how much a step is to raise the bound, first and at least.
  double rise_ns_ = 0, least_rise_ns_ = 0;
  int idle_ = 0;
  HostBound best_;
};

}  // namespace

HostBound BoundWithHost(const Problem& problem, int64_t budget_bytes,
                        int64_t ticks, Effort& effort) {
  HostBound best;
  if (problem.base.peak_bytes <= budget_bytes) return best;
  std::vector<std::unique_ptr<PriceSearch>> searches;
  int64_t spent = 0;
  const auto count = [&](PriceSearch& search, const auto& what) {
    const int64_t before = search.ticks();
    const bool goes_on = what();
    spent += search.ticks() - before;
    effort.Spend(search.ticks() - before);
    if (search.best().added_ns > best.added_ns) best = search.best();
    return goes_on && spent < ticks && !effort.Over();
  };
  const auto step = [&](PriceSearch& search, int steps) {
    while (steps-- > 0 && count(search, [&] { return search.Step(); })) {
    }
  };
  for (const OpId at : LocalPeaks(problem.base_bytes, kWindows,
                                  std::max(1, problem.op_count / 32))) {
    if (problem.base_bytes[at] <= budget_bytes) break;
    if (!searches.empty() && (spent > ticks / 2 || effort.Over())) break;
    searches.push_back(
        std::make_unique<PriceSearch>(problem, at, budget_bytes));
    PriceSearch& search = *searches.back();
    const bool goes_on = count(search, [&] {
      search.Begin();
      return true;
    });
    if (goes_on) step(search, kFirstSteps);
  }
  std::stable_sort(searches.begin(), searches.end(),
                   [](const auto& a, const auto& b) {
                     return a->best().added_ns > b->best().added_ns;
                   });
  for (size_t i = 0; i < searches.size() && i < 2; ++i) {
    if (spent < ticks && !effort.Over()) step(*searches[i], kMostSteps);
  }
  return best;
}

verify::Certificate CertifyHost(const Problem& problem, int64_t budget_bytes,
                                const HostBound& bound) {
  if (bound.at == kNoOp) return {};
  const auto facts =
      verify::ReadFacts(*problem.graph, ExecutorOf(problem.capabilities));
  if (!facts.ok()) return {};
  const auto [price, shift] = bound.window.price;
  verify::Certificate certificate{
      .method = verify::Method::kWindow,
      .budget_bytes = budget_bytes,
      .added_ns = bound.added_ns,
      .at = {bound.at},
      .tree = {{.shift = std::max(0, shift),
                .price = price << std::max(0, -shift)}}};
  for (const verify::Multiplier& row : bound.window.rows) {
    if (row.value > 0) certificate.tree[0].multipliers.push_back(row);
  }
  if (verify::CheckCertificate(*facts, certificate).ok()) return certificate;
  return {};
}

}  // namespace reprise::planner
