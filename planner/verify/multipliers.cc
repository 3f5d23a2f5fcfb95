// SPDX-License-Identifier: Apache-2.0
//
// The bound that a vector of multipliers proves: 128-bit integers, with every
// operation checked.
#include "planner/verify/program.h"

namespace reprise::verify {

StatusOr<Program::Reduced> Program::Reduce(const Node& node) const {
  constexpr int kMostShift = 60;
  if (node.shift < 0 || node.byte_shift < 0 || node.shift > kMostShift ||
      node.byte_shift > kMostShift) {
    return InvalidArgument("a shift is out of range");
  }
  Reduced sums{.unit = node.shift + node.byte_shift};
  bool overflow = false;
  const auto add_product = [&](Wide& sum, Wide a, Wide b) {
    Wide product = 0;
    overflow = overflow || __builtin_mul_overflow(a, b, &product) ||
               __builtin_add_overflow(sum, product, &sum);
  };
  sums.columns.assign(cost_ns_.size(), 0);
  if (!node.impossible) {
    for (size_t j = 0; j < cost_ns_.size(); ++j) {
      add_product(sums.columns[j], cost_ns_[j], Wide{1} << sums.unit);
    }
  }
  for (const Multiplier& multiplier : node.multipliers) {
    if (multiplier.row < 0 || multiplier.row >= row_count() ||
        multiplier.value < 0) {
      return InvalidArgument("a multiplier is negative or of no row");
    }
    const bool bytes = InBytes(multiplier.row);
    const Wide value = Wide{multiplier.value} << (bytes ? 0 : node.byte_shift);
    add_product(sums.constant, value, Least(multiplier.row));
    for (const Entry& entry : Row(multiplier.row)) {
      add_product(sums.columns[entry.column], -value, entry.value);
    }
  }
  if (overflow) return InvalidArgument("a sum is out of range");
  return sums;
}

StatusOr<Program::Wide> Program::LeastOf(const Reduced& sums,
                                         std::span<const uint8_t> low,
                                         std::span<const uint8_t> high) {
  Wide proven = sums.constant;
  for (size_t j = 0; j < sums.columns.size(); ++j) {
    const uint8_t at = sums.columns[j] < 0 ? high[j] : low[j];
    if (at != 0 && __builtin_add_overflow(proven, sums.columns[j], &proven)) {
      return InvalidArgument("a sum is out of range");
    }
  }
  return proven;
}

StatusOr<int64_t> Program::AddedNs(const Node& leaf,
                                   std::span<const uint8_t> low,
                                   std::span<const uint8_t> high) const {
  ASSIGN_OR_RETURN(const Reduced sums, Reduce(leaf));
  if (impossible_) return kNothing;
  ASSIGN_OR_RETURN(const Wide proven, LeastOf(sums, low, high));
  if (proven <= 0) return 0;
  if (leaf.impossible) return kNothing;
  // Times are integers, so what is proven is rounded up.
  const Wide added = ((proven - 1) >> sums.unit) + 1;
  return added >= kNothing ? kNothing : static_cast<int64_t>(added);
}

StatusOr<std::vector<Program::Fixed>> Program::Narrow(
    const Node& node, int64_t claimed_ns, std::span<const uint8_t> low,
    std::span<const uint8_t> high) const {
  ASSIGN_OR_RETURN(const Reduced sums, Reduce(node));
  ASSIGN_OR_RETURN(const Wide proven, LeastOf(sums, low, high));
  // The amount missing to the claim: a column whose other value costs more than
  // that cannot have it. Times are integers: above claimed - 1 is at least
  // claimed.
  Wide missing = -proven;
  if (!node.impossible) {
    Wide claimed = 0;
    if (claimed_ns >= kNothing ||
        __builtin_mul_overflow(Wide{claimed_ns - 1}, Wide{1} << sums.unit,
                               &claimed) ||
        __builtin_sub_overflow(claimed, proven, &missing)) {
      return InvalidArgument("a sum is out of range");
    }
  }
  std::vector<Fixed> fixed;
  for (size_t j = 0; j < sums.columns.size(); ++j) {
    if (low[j] == high[j]) continue;
    const auto column = static_cast<int32_t>(j);
    if (sums.columns[j] > missing) {
      fixed.push_back({.column = column, .value = 0});
    } else if (sums.columns[j] < -missing) {
      fixed.push_back({.column = column, .value = 1});
    }
  }
  return fixed;
}

}  // namespace reprise::verify
