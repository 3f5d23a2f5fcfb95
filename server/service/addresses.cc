// SPDX-License-Identifier: Apache-2.0
//
// GetAddresses: who is where in memory, over time. Of a recorded step with its
// real addresses; of a plan with a first-fit layout of its storages.
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
#include <limits>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "server/service/evidence.h"
#include "server/service/handlers.h"
#include "server/service/step_cache.h"
#include "server/service/stored_plan.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

constexpr size_t kMostBoxes = 4000;
constexpr size_t kMostExact = 100'000;
// Of more, so many are looked at to find out how large the largest are.
constexpr size_t kSample = 20'000;
constexpr size_t kMostOrdered = 200'000;
constexpr size_t kMostRanges = 64;
constexpr size_t kMostLives = 100'000;
constexpr uint32_t kDefaultHeight = 400;
constexpr uint32_t kMostHeight = 4096;

// A storage in the window.
struct Life {
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t from_ns = 0, to_ns = 0;
  bool before = false, after = false, at_peak = false;
  size_t index = 0;  // where it comes from
};

struct View {
  int64_t from_ns = 0, to_ns = 0;
  int64_t width = 0, height = 0;
};

// Joins the addresses of boxes to ranges, leaving out gaps, but small ones.
void AddRanges(std::vector<Life>& boxes, v1::Addresses& answer) {
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  spans.reserve(boxes.size());
  for (const Life& box : boxes) {
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
int64_t SpanAtPeak(const std::vector<Life>& lives,
                   const v1::Addresses& answer) {
  int64_t span = 0;
  for (const v1::AddressRange& range : answer.ranges()) {
    uint64_t low = std::numeric_limits<uint64_t>::max(), high = 0;
    for (const Life& life : lives) {
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

// Chooses what gets a box of its own. `alive` storages are in the window, and
// `area` is all their bytes x ns.
void Choose(const View& view, std::vector<Life> lives, uint64_t alive,
            double area, v1::Addresses& answer, std::vector<Life>& boxes) {
  // The height of the picture is what is used, which no more than all of the
  // largest concurrent bytes and the gaps between: an estimate that errs low.
  const double used =
      std::max<double>(static_cast<double>(answer.peak_bytes()), 1.0);
  const double tall = used / static_cast<double>(view.height);
  const double wide = static_cast<double>(view.to_ns - view.from_ns) /
                      static_cast<double>(view.width);
  const auto area_of = [](const Life& life) {
    return static_cast<double>(life.bytes) *
           static_cast<double>(life.to_ns - life.from_ns);
  };
  std::vector<Life> kept;
  for (const Life& life : lives) {
    const bool seen = static_cast<double>(life.bytes) >= tall ||
                      static_cast<double>(life.to_ns - life.from_ns) >= wide;
    if (seen || life.at_peak || lives.size() <= kMostBoxes) {
      kept.push_back(life);
    }
  }
  // What is alive at the peak is the last to go.
  std::sort(kept.begin(), kept.end(), [&](const Life& a, const Life& b) {
    const double x = area_of(a), y = area_of(b);
    return x != y ? x > y : a.index < b.index;
  });
  if (kept.size() > kMostBoxes) {
    std::stable_partition(kept.begin(), kept.end(),
                          [](const Life& life) { return life.at_peak; });
    kept.resize(kMostBoxes);
    std::sort(kept.begin(), kept.end(), [&](const Life& a, const Life& b) {
      const double x = area_of(a), y = area_of(b);
      return x != y ? x > y : a.index < b.index;
    });
  }
  double drawn = 0;
  for (const Life& life : kept) drawn += area_of(life);
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
  boxes = std::move(kept);
}

void FillBox(const Life& life, v1::AddressBox& box) {
  box.set_address(life.address);
  box.set_bytes(life.bytes);
  box.set_from_ns(life.from_ns);
  box.set_to_ns(life.to_ns);
  box.set_before(life.before);
  box.set_after(life.after);
  box.set_at_peak(life.at_peak);
}

// ---- A recorded step ----

class Recorded {
 public:
  Recorded(const RecordedStep& step, const View& view)
      : step_(step), view_(view), all_(step.lifetimes.all()) {}

  v1::Addresses Draw() {
    v1::Addresses answer;
    answer.set_source(v1::ADDRESS_SOURCE_RECORDED);
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
    std::vector<Life> lives;
    double area = 0;
    const auto take = [&](size_t index) {
      const Life life = LifeOf(index, peak);
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
    std::vector<Life> boxes;
    Choose(view_, std::move(lives), alive, area, answer, boxes);
    for (const Life& life : boxes) {
      v1::AddressBox& box = *answer.add_boxes();
      FillBox(life, box);
      const Allocation& one = all_[life.index];
      const std::string& stack = step_.Text(one.stack);
      const std::string& name = step_.Text(one.name);
      box.set_category(CategoryOf(EvidenceIn(stack, name, one.phase),
                                  one.died != Allocation::kNever));
      box.set_owner(name.empty() ? stack.substr(0, stack.find('\n')) : name);
    }
    return answer;
  }

 private:
  Life LifeOf(size_t index, size_t peak) const {
    const Allocation& one = all_[index];
    Life life{
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
                     size_t born, size_t peak, std::vector<Life>& lives) {
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
  const View view_;
  const std::vector<Allocation>& all_;
};

// ---- A plan ----

struct Slot {
  int32_t born = 0, dead = 0;
  Life life;
};

// Puts each storage at the lowest address where it fits, in order of birth.
void PlaceFirstFit(std::vector<Slot>& slots, int64_t static_bytes) {
  struct Held {
    int64_t begin, end;
    int32_t dead;
  };
  std::stable_sort(
      slots.begin(), slots.end(),
      [](const Slot& a, const Slot& b) { return a.born < b.born; });
  std::vector<Held> held;  // by address
  for (Slot& slot : slots) {
    std::erase_if(held, [&](const Held& one) { return one.dead <= slot.born; });
    int64_t at = static_bytes;
    auto place = held.begin();
    for (; place != held.end() && place->begin - at < slot.life.bytes;
         ++place) {
      at = std::max(at, place->end);
    }
    held.insert(place, {at, at + slot.life.bytes, slot.dead});
    slot.life.address = static_cast<uint64_t>(at);
  }
}

StatusOr<v1::Addresses> DrawPlan(const StoredPlan& plan,
                                 const v1::GetAddressesRequest& request,
                                 View view) {
  if (plan.schedule.empty()) {
    return NotFound(StrCat("plan ", plan.proto.plan_id(),
                           " has no schedule: no plan fits its budget"));
  }
  std::vector<planner::MemoryPoint> points;
  RETURN_IF_ERROR(
      planner::Evaluate(plan.graph, plan.schedule, plan.capabilities, &points)
          .status());
  const int64_t step_ns = plan.evaluation.time_ns;
  // The time of each entry: of the exec that it is, or that follows it.
  std::vector<int64_t> time_of(plan.schedule.size() + 1, step_ns);
  std::vector<size_t> point_of(plan.schedule.size() + 1, points.size());
  size_t exec = 0;
  for (size_t entry = 0; entry < plan.schedule.size(); ++entry) {
    point_of[entry] = exec;
    time_of[entry] = exec < points.size() ? points[exec].start_ns : step_ns;
    if (plan.schedule[entry].kind == planner::Entry::Kind::kExec) ++exec;
  }
  const std::vector<planner::Lifetime> lifetimes =
      planner::Lifetimes(plan.graph, plan.schedule);
  if (lifetimes.size() > kMostLives) {
    return ResourceExhausted(
        StrCat("plan ", plan.proto.plan_id(), " has ", lifetimes.size(),
               " lives of storages; at most ", kMostLives, " are laid out"));
  }
  std::vector<Slot> slots;
  for (const planner::Lifetime& life : lifetimes) {
    const auto storage = static_cast<size_t>(life.storage);
    const int64_t bytes = plan.graph.storages[storage].bytes;
    if (bytes == 0) continue;
    slots.push_back(
        {.born = life.born,
         .dead = life.dead,
         .life = {.bytes = bytes,
                  .from_ns = time_of[static_cast<size_t>(life.born)],
                  .to_ns = time_of[static_cast<size_t>(life.dead)],
                  .index = storage}});
  }
  PlaceFirstFit(slots, plan.graph.static_bytes);

  if (request.t0_ns() == 0 && request.t1_ns() == 0) view.to_ns = step_ns;
  RETURN_IF_ERROR(CheckWindow({.from_ns = request.t0_ns(),
                               .to_ns = request.t1_ns(),
                               .columns = static_cast<uint32_t>(view.width)},
                              step_ns));
  v1::Addresses answer;
  answer.set_source(v1::ADDRESS_SOURCE_FIRST_FIT);
  answer.set_from_ns(view.from_ns);
  answer.set_to_ns(view.to_ns);
  answer.set_step_ns(step_ns);
  int64_t peak_at = -1;
  for (const planner::MemoryPoint& point : points) {
    if (point.start_ns < view.from_ns || point.start_ns > view.to_ns) continue;
    if (point.bytes <= answer.peak_bytes()) continue;
    answer.set_peak_bytes(point.bytes);
    answer.set_peak_at_ns(point.start_ns);
    peak_at = &point - points.data();
  }
  std::vector<Life> lives;
  double area = 0;
  const size_t static_index = plan.graph.storages.size();
  if (plan.graph.static_bytes > 0) {
    lives.push_back({.bytes = plan.graph.static_bytes,
                     .from_ns = 0,
                     .to_ns = step_ns,
                     .before = true,
                     .after = true,
                     .at_peak = true,
                     .index = static_index});
  }
  for (const Slot& slot : slots) {
    if (slot.life.to_ns < view.from_ns || slot.life.from_ns > view.to_ns) {
      continue;
    }
    Life life = slot.life;
    life.at_peak =
        peak_at >= 0 &&
        point_of[static_cast<size_t>(slot.born)] <=
            static_cast<size_t>(peak_at) &&
        point_of[static_cast<size_t>(slot.dead)] > static_cast<size_t>(peak_at);
    lives.push_back(life);
  }
  for (Life& life : lives) {
    life.before = life.before || life.from_ns < view.from_ns;
    life.after = life.after || life.to_ns > view.to_ns;
    life.from_ns = std::max(life.from_ns, view.from_ns);
    life.to_ns = std::min(life.to_ns, view.to_ns);
    area += static_cast<double>(life.bytes) *
            static_cast<double>(life.to_ns - life.from_ns);
  }
  const uint64_t alive = lives.size();
  std::vector<Life> boxes;
  Choose(view, std::move(lives), alive, area, answer, boxes);
  std::vector<planner::OpId> writer(plan.graph.storages.size(), planner::kNoOp);
  for (size_t op = 0; op < plan.graph.ops.size(); ++op) {
    for (const planner::StorageId storage : plan.graph.ops[op].writes) {
      writer[static_cast<size_t>(storage)] = static_cast<planner::OpId>(op);
    }
  }
  for (const Life& life : boxes) {
    v1::AddressBox& box = *answer.add_boxes();
    FillBox(life, box);
    if (life.index == static_index) {
      box.set_category(v1::CATEGORY_PARAMETER);
      box.set_owner("static memory: parameters, optimizer state");
      continue;
    }
    const planner::Storage& storage = plan.graph.storages[life.index];
    box.set_category(storage.category == planner::Category::kUnspecified
                         ? v1::CATEGORY_UNKNOWN
                         : static_cast<v1::Category>(storage.category));
    const planner::OpId op = writer[life.index];
    box.set_owner(!storage.name.empty() || op == planner::kNoOp
                      ? storage.name
                      : StrCat("op ", op, " ",
                               plan.graph.ops[static_cast<size_t>(op)].name));
  }
  return answer;
}

}  // namespace

StatusOr<v1::Addresses> GetAddresses(Services& services,
                                     const v1::GetAddressesRequest& request) {
  if (request.height_px() > kMostHeight || request.width_px() > kMaxColumns) {
    return InvalidArgument(StrCat(
        "width_px, height_px: at most ", kMaxColumns, " and ", kMostHeight,
        ", got ", request.width_px(), " and ", request.height_px()));
  }
  View view{
      .from_ns = request.t0_ns(),
      .to_ns = request.t1_ns(),
      .width = request.width_px() == 0 ? kDefaultColumns : request.width_px(),
      .height =
          request.height_px() == 0 ? kDefaultHeight : request.height_px()};
  if (!request.plan_id().empty()) {
    ASSIGN_OR_RETURN(const StoredPlan plan,
                     LoadStoredPlan(services.store, request.plan_id()));
    return DrawPlan(plan, request, view);
  }
  std::shared_ptr<const RecordedStep> step;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const std::string run_id,
                     ResolveRunId(db, request.run_id()));
    ASSIGN_OR_RETURN(step, services.steps.Get(db, run_id, request.planned()));
    return OkStatus();
  }));
  RETURN_IF_ERROR(CheckWindow({.from_ns = request.t0_ns(),
                               .to_ns = request.t1_ns(),
                               .columns = static_cast<uint32_t>(view.width)},
                              step->step_ns));
  if (request.t0_ns() == 0 && request.t1_ns() == 0) view.to_ns = step->step_ns;
  return Recorded(*step, view).Draw();
}

}  // namespace reprise::server
