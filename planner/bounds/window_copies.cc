// SPDX-License-Identifier: Apache-2.0
//
// What the rows of the link to host memory add to a window (window_bound.h).
#include <algorithm>
#include <utility>

#include "planner/bounds/window_bound.h"

namespace reprise::planner {
namespace {

// Of copies, as far as a price has to exceed them: about five hours.
constexpr int64_t kMostCopyCost = int64_t{1} << 44;

}  // namespace

void WindowBound::TimeCopies() {
  const Link& link = problem_.capabilities.link;
  begin_.push_back(0);
  for (const int64_t ns : problem_.time_ns)
    begin_.push_back(begin_.back() + ns);
  for (size_t i = 0; i < values_.size(); ++i) {
    const int64_t bytes = problem_.BytesOf(values_[i]);
    out_ns_.push_back(CopyNs(bytes, link.out_bytes_per_s, link.latency_ns));
    in_ns_.push_back(CopyNs(bytes, link.in_bytes_per_s, link.latency_ns));
    reader_.push_back(NextReader(values_[i]));
    if (RunsAgain(maker_of_[i])) continue;
    copy_cost_ =
        std::min(kMostCopyCost,
                 copy_cost_ + std::min(out_ns_[i] + in_ns_[i], kMostCopyCost));
  }
}

void WindowBound::PriceCopies(int shift) {
  const OpId end = problem_.op_count;
  copies_ = {.shift = shift};
  const double unit = shift < 0 ? 0 : static_cast<double>(int64_t{1} << shift);
  std::vector<std::pair<OpId, int64_t>> outs, ins;
  const auto add = [&](const auto& prices, auto& units, int row) {
    int64_t left = static_cast<int64_t>(unit);
    for (const auto& [op, price] : prices) {
      // A row with a price keeps one: without, copies cost nothing.
      const auto most =
          std::max(static_cast<int64_t>(price * unit), int64_t{price > 0});
      units.emplace_back(op, std::clamp<int64_t>(most, 0, left));
      left -= units.back().second;
      copies_.rows.push_back({row + op, units.back().second});
    }
    return static_cast<int64_t>(unit) - left;
  };
  add(prices_.outs, outs, 0);
  copies_.ins = add(prices_.ins, ins, end);
  constexpr double kMostPrice = static_cast<double>(int64_t{1} << kSumBits);
  const auto host = static_cast<int64_t>(
      std::clamp(prices_.host_ns_per_byte * unit, 0.0, kMostPrice));
  copies_.rows.push_back({2 * end + 1, host});
  // What the rows give: the time of first runs, and host memory.
  for (const auto& [op, price] : outs) {
    copies_.hidden +=
        static_cast<__int128>(begin_[at_] - begin_[op + 1]) * price;
  }
  for (const auto& [op, price] : ins) {
    copies_.hidden +=
        static_cast<__int128>(begin_[op] - begin_[at_ + 1]) * price;
  }
  copies_.hidden +=
      static_cast<__int128>(problem_.capabilities.link.host_bytes) * host;
  for (size_t i = 0; i < values_.size(); ++i) {
    const OpId maker = problem_.versions.maker[values_[i]];
    __int128 out = 0, in = 0;
    for (const auto& [op, price] : outs) out += op <= maker ? price : 0;
    for (const auto& [op, price] : ins) in += op >= reader_[i] ? price : 0;
    const __int128 all =
        out * out_ns_[i] + in * in_ns_[i] +
        static_cast<__int128>(problem_.BytesOf(values_[i])) * host;
    copies_.price.push_back(
        static_cast<int64_t>(std::min<__int128>(all, MaxFlow::kInfinite)));
  }
  copies_.on_host.assign(values_.size(), 0);
}

std::vector<double> WindowBound::Broken(const KeepSet& cut) const {
  std::vector<double> broken;
  int64_t again_ns = 0;
  for (const OpId o : cut.recomputed) again_ns += problem_.rules.rerun_ns[o];
  const auto add = [&](int64_t given, const auto& taken) {
    auto sum = -static_cast<double>(given);
    for (const ValueId v : cut.hosted) {
      sum += static_cast<double>(taken(v, value_node_[v]));
    }
    broken.push_back(sum);
  };
  for (const auto& [op, price] : prices_.outs) {
    add(begin_[at_] - begin_[op + 1], [&, first = op](ValueId v, int32_t i) {
      return problem_.versions.maker[v] >= first ? out_ns_[i] : 0;
    });
  }
  for (const auto& [op, price] : prices_.ins) {
    add(begin_[op] - begin_[at_ + 1] + again_ns,
        [&, last = op](ValueId, int32_t i) {
          return reader_[i] <= last ? in_ns_[i] : 0;
        });
  }
  add(problem_.capabilities.link.host_bytes,
      [&](ValueId v, int32_t) { return problem_.BytesOf(v); });
  return broken;
}

}  // namespace reprise::planner
