// SPDX-License-Identifier: Apache-2.0
#include "server/service/memory/step_cache.h"

#include <utility>

#include "server/store/run_rows.h"

namespace reprise::server {

namespace {
constexpr auto kIdle = std::chrono::minutes(10);
}  // namespace

std::shared_ptr<StepCache::Slot> StepCache::Find(const std::string& run_id,
                                                 bool planned, int64_t row_id,
                                                 uint64_t records,
                                                 const std::string& graph_id) {
  const std::lock_guard lock(mutex_);
  for (auto it = slots_.begin(); it != slots_.end(); ++it) {
    Slot& slot = **it;
    if (slot.run_id != run_id || slot.planned != planned) continue;
    if (slot.row_id != row_id || slot.records != records ||
        slot.graph_id != graph_id) {
      slots_.erase(it);
      break;
    }
    slots_.splice(slots_.begin(), slots_, it);
    slot.used_at = Clock::now();
    return slots_.front();
  }
  auto slot = std::make_shared<Slot>();
  slot->run_id = run_id;
  slot->planned = planned;
  slot->row_id = row_id;
  slot->records = records;
  slot->graph_id = graph_id;
  slot->used_at = Clock::now();
  slots_.push_front(slot);
  return slot;
}

StatusOr<std::shared_ptr<const RecordedStep>> StepCache::Get(
    Database& db, const std::string& run_id, bool planned) {
  ASSIGN_OR_RETURN(const StepRow row, LoadWindowedStep(db, run_id, planned));
  ASSIGN_OR_RETURN(const v1::Run run, LoadRun(db, run_id));
  (void)DropIdle();
  const std::shared_ptr<Slot> slot =
      Find(run_id, planned, row.id, run.records(), run.graph_id());
  const std::lock_guard filling(slot->filling);
  if (slot->step) return slot->step;
  StatusOr<RecordedStep> read =
      ReadRecordedStep(db, run_id, row, run.graph_id());
  const std::lock_guard lock(mutex_);
  if (!read.ok()) {
    slots_.remove(slot);
    return read.status();
  }
  slot->bytes = read->MemoryBytes();
  slot->step = std::make_shared<const RecordedStep>(*std::move(read));
  Trim(slot.get());
  return slot->step;
}

// Requires mutex_.
void StepCache::Trim(const Slot* newest) {
  size_t sum = 0;
  for (auto it = slots_.begin(); it != slots_.end();) {
    sum += (*it)->bytes;
    it = sum > most_bytes_ && it->get() != newest ? slots_.erase(it)
                                                  : std::next(it);
  }
}

StatusOr<std::shared_ptr<const RecordedStep>> StepCache::Of(
    Store& store, const std::string& run_text, bool planned) {
  using Step = StatusOr<std::shared_ptr<const RecordedStep>>;
  return store.Get([&](Database& db) -> Step {
    ASSIGN_OR_RETURN(const std::string run_id, ResolveRunId(db, run_text));
    return Get(db, run_id, planned);
  });
}

size_t StepCache::DropIdle() {
  const std::lock_guard lock(mutex_);
  const auto since = Clock::now() - kIdle;
  size_t bytes = 0;
  slots_.remove_if([&](const auto& slot) {
    const bool idle = slot->used_at < since;
    bytes += idle ? slot->bytes : 0;
    return idle;
  });
  return bytes;
}

size_t StepCache::held_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const auto& slot : slots_) sum += slot->bytes;
  return sum;
}

}  // namespace reprise::server
