// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "formats/convert/graph_names.h"
#include "planner/model/evaluate.h"
#include "server/service/memory/address_boxes.h"
#include "server/service/memory/memory_curve.h"

namespace reprise::server {

namespace {

constexpr size_t kMostLives = 100'000;

struct Slot {
  int32_t born = 0, dead = 0;
  AddressLife life;
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

}  // namespace

StatusOr<v1::Addresses> DrawPlannedAddresses(
    const StoredPlan& plan, const v1::GetAddressesRequest& request,
    AddressView view) {
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
  std::vector<AddressLife> lives;
  double area = 0;
  const size_t static_index = plan.graph.storages.size();
  const std::vector<planner::StaticPart> parts =
      planner::StaticMemory(plan.graph);
  uint64_t address = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    lives.push_back({.address = address,
                     .bytes = parts[i].bytes,
                     .from_ns = 0,
                     .to_ns = step_ns,
                     .before = true,
                     .after = true,
                     .at_peak = true,
                     .index = static_index + i});
    address += static_cast<uint64_t>(parts[i].bytes);
  }
  for (const Slot& slot : slots) {
    if (slot.life.to_ns < view.from_ns || slot.life.from_ns > view.to_ns) {
      continue;
    }
    AddressLife life = slot.life;
    life.at_peak =
        peak_at >= 0 &&
        point_of[static_cast<size_t>(slot.born)] <=
            static_cast<size_t>(peak_at) &&
        point_of[static_cast<size_t>(slot.dead)] > static_cast<size_t>(peak_at);
    lives.push_back(life);
  }
  for (AddressLife& life : lives) {
    life.before = life.before || life.from_ns < view.from_ns;
    life.after = life.after || life.to_ns > view.to_ns;
    life.from_ns = std::max(life.from_ns, view.from_ns);
    life.to_ns = std::min(life.to_ns, view.to_ns);
    area += static_cast<double>(life.bytes) *
            static_cast<double>(life.to_ns - life.from_ns);
  }
  const uint64_t alive = lives.size();
  const std::vector<AddressLife> boxes =
      ChooseBoxes(view, std::move(lives), alive, area, answer);
  std::vector<planner::OpId> writer(plan.graph.storages.size(), planner::kNoOp);
  for (size_t op = 0; op < plan.graph.ops.size(); ++op) {
    for (const planner::StorageId storage : plan.graph.ops[op].writes) {
      writer[static_cast<size_t>(storage)] = static_cast<planner::OpId>(op);
    }
  }
  for (const AddressLife& life : boxes) {
    v1::AddressBox& box = *answer.add_boxes();
    FillAddressBox(life, box);
    if (life.index >= static_index) {
      const planner::StaticPart& part = parts[life.index - static_index];
      const auto category = static_cast<v1::Category>(part.category);
      box.set_category(category);
      box.set_owner(
          StrCat("static memory: ", formats::kCategoryTexts[category]));
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

}  // namespace reprise::server
