// SPDX-License-Identifier: Apache-2.0
//
// GetAddresses: who is where in memory, over time, in a recorded step.
//
//   address                       unused ranges of addresses are left out
//     |  +-----+  +-----------+
//     |  |     |  +-----------+   a box: one storage from its birth to its death
//     |  +-----+------+
//     +------------------- time
//
// What is smaller than a pixel is folded, but for what is alive at the peak of
// the window. O(storages in the window + boxes log boxes); of more than 100,000
// storages only the largest by bytes are looked at one by one.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "server/service/calls/handlers.h"
#include "server/service/memory/address_boxes.h"
#include "server/service/memory/evidence.h"
#include "server/service/memory/step_cache.h"

namespace reprise::server {

namespace {

constexpr size_t kMostExact = 100'000;
// Of more, so many are looked at to find out how large the largest are.
constexpr size_t kSample = 20'000;
constexpr size_t kMostOrdered = 200'000;
constexpr uint32_t kDefaultHeight = 400;
constexpr uint32_t kMostHeight = 4096;

// Draws a recorded step.
class Recorded {
 public:
  Recorded(const RecordedStep& step, const AddressView& view)
      : step_(step), view_(view), all_(step.lifetimes.all()) {}

  v1::Addresses Draw() {
    v1::Addresses answer;
    answer.set_step(step_.step);
    answer.set_from_ns(view_.from_ns);
    answer.set_to_ns(view_.to_ns);
    answer.set_step_ns(step_.step_ns);
    answer.set_incomplete(step_.incomplete);
    const MemoryCurve& curve = step_.curve;
    const size_t first = std::max(curve.EventAt(view_.from_ns), step_.first);
    const size_t last = std::max(curve.EventAt(view_.to_ns), first);
    const size_t peak = curve.HighestIn(first, last + 1);
    answer.set_peak_bytes(curve.bytes(peak));
    answer.set_peak_at_ns(std::max<int64_t>(curve.time(peak), 0));

    // Alive when the window begins, and born in it: these stand in order.
    std::vector<size_t> found;
    step_.lifetimes.VisitAlive(static_cast<uint32_t>(first),
                               [&](size_t index) { found.push_back(index); });
    const auto before = [&](const Allocation& one, size_t event) {
      return one.born == Allocation::kBefore || one.born <= event;
    };
    const auto from = std::partition_point(
        all_.begin(), all_.end(),
        [&](const Allocation& one) { return before(one, first); });
    const auto to = std::partition_point(
        from, all_.end(),
        [&](const Allocation& one) { return before(one, last); });
    const auto born = static_cast<size_t>(to - from);
    const uint64_t alive = found.size() + born;
    const auto begin = static_cast<size_t>(from - all_.begin());
    std::vector<AddressLife> lives;
    double area = 0;
    const auto take = [&](size_t index) {
      const AddressLife life = LifeOf(index, peak);
      area += static_cast<double>(life.bytes) *
              static_cast<double>(life.to_ns - life.from_ns);
      lives.push_back(life);
    };
    if (alive <= kMostExact) {
      lives.reserve(alive);
      for (const size_t index : found) take(index);
      for (size_t i = begin; i < begin + born; ++i) take(i);
    } else {
      area = TakeLargest(found, begin, born, peak, lives);
    }
    const std::vector<AddressLife> boxes =
        ChooseBoxes(view_, std::move(lives), alive, area, answer);
    for (const AddressLife& life : boxes) {
      v1::AddressBox& box = *answer.add_boxes();
      box.set_address(life.address);
      box.set_bytes(life.bytes);
      box.set_from_ns(life.from_ns);
      box.set_to_ns(life.to_ns);
      box.set_before(life.before);
      box.set_after(life.after);
      box.set_at_peak(life.at_peak);
      const Allocation& one = all_[life.index];
      const std::string& stack = step_.Text(one.stack);
      const std::string& name = step_.Text(one.name);
      const v1::Category before = step_.CategoryBefore(life.index);
      box.set_category(before != v1::CATEGORY_UNSPECIFIED
                           ? before
                           : CategoryOf(EvidenceIn(stack, name, one.phase),
                                        one.died != Allocation::kNever));
      box.set_owner(name.empty() ? stack.substr(0, stack.find('\n')) : name);
    }
    return answer;
  }

 private:
  AddressLife LifeOf(size_t index, size_t peak) const {
    const Allocation& one = all_[index];
    AddressLife life{
        .address = one.address, .bytes = step_.BytesOf(index), .index = index};
    const MemoryCurve& curve = step_.curve;
    life.before =
        one.born == Allocation::kBefore || curve.time(one.born) < view_.from_ns;
    life.after =
        one.died == Allocation::kNever || curve.time(one.died) > view_.to_ns;
    life.from_ns = life.before ? view_.from_ns : curve.time(one.born);
    life.to_ns = life.after ? view_.to_ns : curve.time(one.died);
    life.at_peak = (one.born == Allocation::kBefore || one.born <= peak) &&
                   (one.died == Allocation::kNever || one.died > peak);
    return life;
  }

  // Of very many storages, those of most bytes; returns the area of all, from
  // the curve.
  double TakeLargest(const std::vector<size_t>& found, size_t begin,
                     size_t born, size_t peak,
                     std::vector<AddressLife>& lives) {
    const size_t all = found.size() + born;
    const auto index_of = [&](size_t i) {
      return i < found.size() ? found[i] : begin + i - found.size();
    };
    std::vector<int64_t> sample;
    const size_t stride = std::max<size_t>(all / kSample, 1);
    for (size_t i = 0; i < all; i += stride) {
      sample.push_back(step_.BytesOf(index_of(i)));
    }
    const size_t rank =
        std::min(sample.size() - 1, sample.size() * 2 * kMostBoxes / all);
    std::nth_element(sample.begin(),
                     sample.begin() + static_cast<ptrdiff_t>(rank),
                     sample.end(), std::greater<>());
    const int64_t least = sample[rank];
    std::vector<std::pair<int64_t, size_t>> order;
    for (size_t i = 0; i < all && order.size() < kMostOrdered; ++i) {
      const int64_t bytes = step_.BytesOf(index_of(i));
      if (bytes >= least) order.emplace_back(bytes, index_of(i));
    }
    const auto middle = order.begin() + static_cast<ptrdiff_t>(
                                            std::min(kMostBoxes, order.size()));
    std::nth_element(
        order.begin(), middle, order.end(), [](const auto& a, const auto& b) {
          return a.first != b.first ? a.first > b.first : a.second < b.second;
        });
    double share = 0;
    for (auto one = order.begin(); one != middle; ++one) {
      lives.push_back(LifeOf(one->second, peak));
      // Not all that is alive at the peak can be drawn: none is preferred.
      lives.back().at_peak = false;
    }
    // The curve in a thousand columns is near enough for a share.
    const v1::Curve curve = step_.curve.Draw(
        step_.step_ns, {.from_ns = view_.from_ns,
                        .to_ns = std::max(view_.to_ns, view_.from_ns + 1),
                        .columns = 1000});
    for (int i = 0; i < curve.max_bytes_size(); ++i) {
      share += static_cast<double>(curve.max_bytes(i) + curve.min_bytes(i)) /
               2 * static_cast<double>(curve.column_ns());
    }
    return share;
  }

  const RecordedStep& step_;
  const AddressView view_;
  const std::vector<Allocation>& all_;
};

}  // namespace

StatusOr<v1::Addresses> GetAddresses(Services& services,
                                     const v1::GetAddressesRequest& request) {
  if (request.height_px() > kMostHeight || request.width_px() > kMaxColumns) {
    return InvalidArgument(StrCat(
        "width_px, height_px: at most ", kMaxColumns, " and ", kMostHeight,
        ", got ", request.width_px(), " and ", request.height_px()));
  }
  AddressView view{
      .from_ns = request.t0_ns(),
      .to_ns = request.t1_ns(),
      .width = request.width_px() == 0 ? kDefaultColumns : request.width_px(),
      .height =
          request.height_px() == 0 ? kDefaultHeight : request.height_px()};
  ASSIGN_OR_RETURN(
      const auto step,
      services.steps.Of(services.store, request.run_id(), request.planned()));
  RETURN_IF_ERROR(CheckWindow({.from_ns = request.t0_ns(),
                               .to_ns = request.t1_ns(),
                               .columns = static_cast<uint32_t>(view.width)},
                              step->step_ns));
  if (request.t0_ns() == 0 && request.t1_ns() == 0) view.to_ns = step->step_ns;
  return Recorded(*step, view).Draw();
}

}  // namespace reprise::server
