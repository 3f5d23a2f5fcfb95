// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "profiler/include/reprise_wire.h"
#include "server/service/memory/moment_view.h"
#include "server/store/chunk_rows.h"

namespace reprise::server {

namespace {

// How far back to search for a baseline: 4 million records.
constexpr int kMostChunksBeforeAMoment = 1024;

struct MomentEvent {
  int64_t time_ns = 0;
  uint32_t kind = 0;
  uint32_t name = 0;
  uint64_t op = 0;
  uint64_t what = 0;  // of an ALLOC
  uint64_t address = 0;
  int64_t bytes = 0;
};

class RecordedMoment {
 public:
  RecordedMoment(Database& db, const MomentRow& row) : db_(db), row_(row) {}

  StatusOr<MomentView> View(size_t most_ops) {
    MomentView view;
    RETURN_IF_ERROR(ReadBack());
    if (!traced_) return view;
    view.traced = true;
    std::stable_sort(events_.begin(), events_.end(),
                     [](const MomentEvent& a, const MomentEvent& b) {
                       return a.time_ns < b.time_ns;
                     });
    RETURN_IF_ERROR(LastOps(most_ops, view));
    RETURN_IF_ERROR(Hold(view));
    return view;
  }

 private:
  bool killed() const {
    return row_.moment.reason() == v1::MOMENT_REASON_KILLED;
  }
  int64_t until_ns() const {
    return killed() ? std::numeric_limits<int64_t>::max() : row_.moment.at_ns();
  }

  // Reads chunks, newest first, until the step's begin and a baseline before it
  // are found. A killed job's moment has the time of its step's begin.
  Status ReadBack() {
    if (killed()) begin_ns_ = row_.moment.at_ns();
    int visited = 0;
    return VisitChunksBackwards(
        db_, row_.session_id, until_ns(),
        [&](int64_t t1_ns, std::string_view body) -> StatusOr<bool> {
          v1::Columns columns;
          if (!columns.ParseFromArray(body.data(),
                                      static_cast<int>(body.size()))) {
            return Status(Code::kDataLoss, "a stored chunk is damaged");
          }
          // A chunk of reports only does not show how far back the walk has
          // come.
          if (columns.kind_size() == 0)
            return ++visited < kMostChunksBeforeAMoment;
          Take(columns);
          const bool past = begin_ns_ >= 0 && t1_ns < begin_ns_;
          const bool enough = past && (!traced_ || baseline_);
          return !enough && ++visited < kMostChunksBeforeAMoment;
        });
  }

  void Take(const v1::Columns& columns) {
    const int count = std::min(columns.kind_size(), columns.start_ns_size());
    for (int i = count - 1; i >= 0; --i) {
      MomentEvent event{.time_ns = static_cast<int64_t>(columns.start_ns(i)),
                        .kind = columns.kind(i),
                        .name = CellOf(columns.name(), i),
                        .op = CellOf(columns.op(), i),
                        .what = CellOf(columns.extra(), i),
                        .address = CellOf(columns.ptr(), i),
                        .bytes = CellOf(columns.bytes(), i)};
      if (event.time_ns > until_ns()) continue;
      switch (event.kind) {
        case v1::RECORD_KIND_STEP:
          if (begin_ns_ < 0 && event.what == row_.moment.step()) {
            begin_ns_ = event.time_ns;
          }
          break;
        case v1::RECORD_KIND_OP_BEGIN:
          traced_ = traced_ || begin_ns_ < 0 || event.time_ns >= begin_ns_;
          events_.push_back(event);
          break;
        case v1::RECORD_KIND_OP_END:
          events_.push_back(event);
          break;
        case v1::RECORD_KIND_ALLOC:
          baseline_ = baseline_ || event.what == REPRISE_BASELINE;
          events_.push_back(event);
          break;
        default:
          break;
      }
    }
  }

  Status LastOps(size_t most_ops, MomentView& view) {
    std::unordered_set<uint64_t> ended;
    for (const MomentEvent& event : events_) {
      if (event.kind == v1::RECORD_KIND_OP_END) ended.insert(event.op);
      if (event.kind == v1::RECORD_KIND_OP_BEGIN) {
        name_of_op_[event.op] = event.name;
      }
    }
    for (auto event = events_.rbegin();
         event != events_.rend() && view.ops.size() < most_ops; ++event) {
      if (event->time_ns < begin_ns_) break;
      if (event->kind != v1::RECORD_KIND_OP_BEGIN) continue;
      v1::LastOp& last = view.ops.emplace_back();
      ASSIGN_OR_RETURN(*last.mutable_name(), Text(event->name));
      last.set_under_way(!ended.contains(event->op));
    }
    std::reverse(view.ops.begin(), view.ops.end());
    return OkStatus();
  }

  Status Hold(MomentView& view) {
    std::unordered_map<uint64_t, MomentEvent> alive;
    int64_t before = 0;  // alive when the window opened
    bool known = false;
    for (const MomentEvent& event : events_) {
      if (event.kind != v1::RECORD_KIND_ALLOC) continue;
      if (event.what == REPRISE_BASELINE) {
        known = true;
        before = event.bytes;
        alive.clear();
      } else if (event.what == REPRISE_ALLOC) {
        alive[event.address] = event;
      } else if (event.what == REPRISE_FREE &&
                 alive.erase(event.address) == 0) {
        before += event.bytes;
      }
    }
    if (!known) return OkStatus();
    view.has_memory = true;
    v1::HeldStorage& rest = view.storages.emplace_back();
    rest.set_bytes(std::max<int64_t>(before, 0));
    rest.set_name("there before the steps that were recorded");
    rest.set_category(v1::CATEGORY_UNKNOWN);
    view.live_bytes = rest.bytes();
    for (const auto& [address, event] : alive) {
      v1::HeldStorage& held = view.storages.emplace_back();
      held.set_bytes(std::max<int64_t>(event.bytes, 0));
      held.set_category(v1::CATEGORY_UNKNOWN);
      const auto op = name_of_op_.find(event.op);
      if (event.op != 0 && op != name_of_op_.end()) {
        ASSIGN_OR_RETURN(*held.mutable_made_by(), Text(op->second));
      }
      view.live_bytes += held.bytes();
    }
    return OkStatus();
  }

  StatusOr<std::string> Text(uint32_t name) {
    const auto known = texts_.find(name);
    if (known != texts_.end()) return known->second;
    ASSIGN_OR_RETURN(const auto row,
                     db_.First("SELECT text FROM names"
                               " WHERE session_id = ? AND id = ?",
                               row_.session_id, name));
    std::string text = row ? std::string(row->Text(0)) : std::string();
    texts_.emplace(name, text);
    return text;
  }

  Database& db_;
  const MomentRow& row_;
  int64_t begin_ns_ = -1;
  bool traced_ = false;
  bool baseline_ = false;
  std::vector<MomentEvent> events_;
  std::unordered_map<uint64_t, uint32_t> name_of_op_;
  std::unordered_map<uint32_t, std::string> texts_;
};

}  // namespace

StatusOr<MomentView> ViewFromRecords(Database& db, const MomentRow& row,
                                     size_t most_ops) {
  return RecordedMoment(db, row).View(most_ops);
}

}  // namespace reprise::server
