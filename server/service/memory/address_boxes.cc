// SPDX-License-Identifier: Apache-2.0
#include "server/service/memory/address_boxes.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace reprise::server {

namespace {

constexpr size_t kMostRanges = 64;

// Joins the addresses of boxes to ranges, leaving out gaps, but small ones.
void AddRanges(std::vector<AddressLife>& boxes, v1::Addresses& answer) {
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  spans.reserve(boxes.size());
  for (const AddressLife& box : boxes) {
    spans.emplace_back(box.address,
                       box.address + static_cast<uint64_t>(box.bytes));
  }
  std::sort(spans.begin(), spans.end());
  std::vector<std::pair<uint64_t, uint64_t>> used;
  uint64_t total = 0;
  for (const auto& [begin, end] : spans) {
    if (!used.empty() && begin <= used.back().second) {
      total += end > used.back().second ? end - used.back().second : 0;
      used.back().second = std::max(used.back().second, end);
    } else {
      used.emplace_back(begin, end);
      total += end - begin;
    }
  }
  // Free memory between blocks is fragmentation and stays in the picture; a gap
  // of more than an eighth of what is used is another part of memory.
  uint64_t gap = std::max<uint64_t>(total / 8, 4096);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  while (true) {
    ranges.clear();
    for (const auto& span : used) {
      if (!ranges.empty() && span.first - ranges.back().second <= gap) {
        ranges.back().second = span.second;
      } else {
        ranges.push_back(span);
      }
    }
    if (ranges.size() <= kMostRanges) break;
    gap *= 2;
  }
  for (const auto& [begin, end] : ranges) {
    v1::AddressRange& range = *answer.add_ranges();
    range.set_address(begin);
    range.set_bytes(static_cast<int64_t>(end - begin));
  }
}

// Returns the bytes from the lowest to the highest address that is used at the
// peak, in each range for itself.
int64_t SpanAtPeak(const std::vector<AddressLife>& lives,
                   const v1::Addresses& answer) {
  int64_t span = 0;
  for (const v1::AddressRange& range : answer.ranges()) {
    uint64_t low = std::numeric_limits<uint64_t>::max(), high = 0;
    for (const AddressLife& life : lives) {
      if (!life.at_peak || life.address < range.address() ||
          life.address >=
              range.address() + static_cast<uint64_t>(range.bytes())) {
        continue;
      }
      low = std::min(low, life.address);
      high = std::max(high, life.address + static_cast<uint64_t>(life.bytes));
    }
    if (high > low) span += static_cast<int64_t>(high - low);
  }
  return span;
}

}  // namespace

std::vector<AddressLife> ChooseBoxes(const AddressView& view,
                                     std::vector<AddressLife> lives,
                                     uint64_t alive, double area,
                                     v1::Addresses& answer) {
  // The height of the picture is what is used, which no more than all of the
  // largest concurrent bytes and the gaps between: an estimate that errs low.
  const double used =
      std::max<double>(static_cast<double>(answer.peak_bytes()), 1.0);
  const double tall = used / static_cast<double>(view.height);
  const double wide = static_cast<double>(view.to_ns - view.from_ns) /
                      static_cast<double>(view.width);
  const auto area_of = [](const AddressLife& life) {
    return static_cast<double>(life.bytes) *
           static_cast<double>(life.to_ns - life.from_ns);
  };
  std::vector<AddressLife> kept;
  for (const AddressLife& life : lives) {
    const bool seen = static_cast<double>(life.bytes) >= tall ||
                      static_cast<double>(life.to_ns - life.from_ns) >= wide;
    if (seen || life.at_peak || lives.size() <= kMostBoxes) {
      kept.push_back(life);
    }
  }
  const auto is_larger = [&](const AddressLife& a, const AddressLife& b) {
    const double x = area_of(a), y = area_of(b);
    return x != y ? x > y : a.index < b.index;
  };
  // What is alive at the peak is the last to go.
  std::sort(kept.begin(), kept.end(), is_larger);
  if (kept.size() > kMostBoxes) {
    std::stable_partition(kept.begin(), kept.end(),
                          [](const AddressLife& life) { return life.at_peak; });
    kept.resize(kMostBoxes);
    std::sort(kept.begin(), kept.end(), is_larger);
  }
  double drawn = 0;
  for (const AddressLife& life : kept) drawn += area_of(life);
  answer.set_alive(alive);
  answer.set_folded(alive - std::min<uint64_t>(alive, kept.size()));
  if (answer.folded() > 0 && area > 0) {
    answer.set_folded_share(std::clamp(1 - drawn / area, 0.0, 1.0));
  }
  AddRanges(kept, answer);
  // With all storages at hand it is exact.
  if (answer.folded() == 0) {
    answer.set_peak_span_bytes(SpanAtPeak(kept, answer));
  }
  return kept;
}

}  // namespace reprise::server
