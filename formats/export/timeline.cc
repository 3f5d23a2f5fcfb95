// SPDX-License-Identifier: Apache-2.0
#include "formats/export/timeline.h"

#include <algorithm>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/graph_names.h"
#include "profiler/include/reprise_wire.h"

namespace reprise::formats {

namespace {

constexpr uint64_t kFirstAddress = uint64_t{1} << 40;

}  // namespace

int64_t ExportTimeline::PeakBytes() const {
  int64_t peak = static_bytes;
  for (const ExportPoint& point : curve) peak = std::max(peak, point.bytes);
  return peak;
}

StatusOr<ExportTimeline> PredictedTimeline(
    std::string title, const planner::StepGraph& graph,
    const planner::Schedule& schedule,
    const planner::Capabilities& capabilities, int64_t reserve_bytes) {
  std::vector<planner::MemoryPoint> points;
  ASSIGN_OR_RETURN(const planner::Evaluation evaluation,
                   planner::Evaluate(graph, schedule, capabilities, &points));
  ExportTimeline out;
  out.title = std::move(title);
  out.duration_ns = evaluation.time_ns;
  out.static_bytes = graph.static_bytes + reserve_bytes;
  out.static_parts = planner::StaticMemory(graph);
  out.names.emplace_back();
  for (const planner::Op& op : graph.ops) {
    out.names.push_back(op.module.empty() ? op.name
                                          : StrCat(op.module, " ", op.name));
  }
  const auto storage_names = static_cast<uint32_t>(out.names.size());
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    const std::string& name = graph.storages[s].name;
    out.names.push_back(name.empty() ? StrCat("storage ", s) : name);
    out.categories.push_back(graph.storages[s].category);
  }
  out.categories_from = storage_names;
  out.names.push_back("workspace");
  out.categories.push_back(planner::Category::kTemporary);

  std::vector<std::vector<planner::StorageId>> born(schedule.size() + 1);
  for (const planner::Lifetime& life : planner::Lifetimes(graph, schedule)) {
    born[static_cast<size_t>(life.born)].push_back(life.storage);
  }
  uint64_t next_address = kFirstAddress;
  const auto place = [&](int64_t bytes) {
    return std::exchange(
        next_address,
        next_address + static_cast<uint64_t>(std::max<int64_t>(bytes, 1)));
  };
  std::vector<uint64_t> address_of(graph.storages.size(), 0);
  std::vector<int> runs(graph.ops.size(), 0);
  int64_t live = out.static_bytes;
  size_t exec = 0;
  int64_t now_ns = 0;
  const auto emit = [&](int64_t bytes, uint64_t address, uint32_t what,
                        uint32_t where) {
    out.events.push_back({now_ns, address, bytes, what, where, 0});
  };
  const auto begin = [&](size_t entry, uint32_t where) {
    for (const planner::StorageId s : born[entry]) {
      const auto at = static_cast<size_t>(s);
      const int64_t bytes = graph.storages[at].bytes;
      address_of[at] = place(bytes);
      live += bytes;
      emit(bytes, address_of[at], storage_names + static_cast<uint32_t>(s),
           where);
    }
  };
  for (size_t entry = 0; entry < schedule.size(); ++entry) {
    const auto id = static_cast<size_t>(schedule[entry].id);
    using Kind = planner::Entry::Kind;
    const Kind kind = schedule[entry].kind;
    if (kind == Kind::kFetch) begin(entry, 0);
    if (kind > Kind::kFree && kind != Kind::kSent) continue;
    if (kind == Kind::kFree || kind == Kind::kSent) {
      const int64_t bytes = graph.storages[id].bytes;
      emit(-bytes, address_of[id], storage_names + static_cast<uint32_t>(id),
           0);
      live -= bytes;
      continue;
    }
    const planner::MemoryPoint& point = points[exec++];
    now_ns = point.start_ns;
    const auto where = static_cast<uint32_t>(id + 1);
    begin(entry, where);
    const int64_t end_ns =
        exec < points.size() ? points[exec].start_ns : evaluation.time_ns;
    const planner::Op& op = graph.ops[id];
    out.ops.push_back(
        {.name = op.name,
         .module = op.module,
         .phase = std::string(kPhaseNames[static_cast<size_t>(op.phase) + 1]),
         .start_ns = now_ns,
         .duration_ns = end_ns - now_ns,
         .run = runs[id]++});
    out.curve.push_back({now_ns, point.bytes + reserve_bytes});
    // Bytes of no storage: the op's workspace and duplicate outputs.
    const int64_t space = point.bytes + reserve_bytes - live;
    now_ns = end_ns;
    if (space > 0) {
      const uint64_t at = place(space);
      const auto what = static_cast<uint32_t>(out.names.size() - 1);
      out.events.push_back({point.start_ns, at, space, what, where, 0});
      out.events.push_back({end_ns, at, -space, what, where, 0});
    }
  }
  return out;
}

// ---- Measured --------------------------------------------------------------

MeasuredTimeline::MeasuredTimeline(std::string title) {
  timeline_.title = std::move(title);
  timeline_.names.emplace_back();
}

uint32_t MeasuredTimeline::Name(const std::string& text) {
  const auto [place, fresh] = name_ids_.try_emplace(
      text, static_cast<uint32_t>(timeline_.names.size()));
  if (fresh) timeline_.names.push_back(text);
  return place->second;
}

void MeasuredTimeline::Add(const v1::StepPart& part) {
  if (part.end_ns() != 0) {
    begin_ns_ = part.begin_ns();
    timeline_.duration_ns = part.end_ns() - part.begin_ns();
    timeline_.static_bytes = live_ = part.baseline_bytes();
    timeline_.curve.push_back({0, live_});
  }
  for (const v1::NameDef& name : part.names()) {
    names_[name.id()] = Name(name.text());
  }
  const v1::Columns& records = part.records();
  const int count =
      std::min({records.kind_size(), records.start_ns_size(),
                records.dur_ns_size(), records.op_size(), records.name_size(),
                records.stream_size(), records.bytes_size(), records.ptr_size(),
                records.thread_size(), records.extra_size()});
  for (int i = 0; i < count; ++i) {
    const int64_t at = static_cast<int64_t>(records.start_ns(i)) - begin_ns_;
    const auto known = names_.find(records.name(i));
    const uint32_t name = known == names_.end() ? 0 : known->second;
    switch (records.kind(i)) {
      case v1::RECORD_KIND_ALLOC: {
        if (records.extra(i) != REPRISE_ALLOC &&
            records.extra(i) != REPRISE_FREE) {
          break;
        }
        const auto op = op_names_.find(records.op(i));
        const uint32_t who =
            name != 0 ? name : (op == op_names_.end() ? 0 : op->second);
        live_ += records.bytes(i);
        timeline_.events.push_back(
            {at, records.ptr(i), records.bytes(i), who, 0, records.thread(i)});
        timeline_.curve.push_back({at, live_});
        break;
      }
      case v1::RECORD_KIND_OP_BEGIN:
        op_names_[records.op(i)] = name;
        open_ops_[records.op(i)] = timeline_.ops.size();
        timeline_.ops.push_back({.name = timeline_.names[name],
                                 .module = {},
                                 .phase = "op",
                                 .start_ns = at,
                                 .duration_ns = -1,
                                 .track = records.thread(i)});
        break;
      case v1::RECORD_KIND_OP_END: {
        const auto open = open_ops_.find(records.op(i));
        if (open == open_ops_.end()) break;
        ExportOp& op = timeline_.ops[open->second];
        op.duration_ns = at - op.start_ns;
        open_ops_.erase(open);
        break;
      }
      case v1::RECORD_KIND_KERNEL:
      case v1::RECORD_KIND_COPY:
      case v1::RECORD_KIND_SET:
        timeline_.ops.push_back(
            {.name = timeline_.names[name],
             .module = {},
             .phase = "kernel",
             .start_ns = at,
             .duration_ns = static_cast<int64_t>(records.dur_ns(i)),
             .track = static_cast<uint32_t>(records.stream(i))});
        break;
      default:
        break;
    }
  }
}

ExportTimeline MeasuredTimeline::Finish() {
  // Remove ops whose end was not recorded.
  std::erase_if(timeline_.ops,
                [](const ExportOp& op) { return op.duration_ns < 0; });
  const auto by_time = [](const auto& a, const auto& b) {
    return a.time_ns < b.time_ns;
  };
  if (!std::is_sorted(timeline_.events.begin(), timeline_.events.end(),
                      by_time)) {
    // Records of different threads may be swapped: sort, and compute the sums
    // again.
    std::stable_sort(timeline_.events.begin(), timeline_.events.end(), by_time);
    int64_t live = timeline_.static_bytes;
    timeline_.curve.assign(1, {0, live});
    for (const ExportEvent& event : timeline_.events) {
      live += event.bytes;
      timeline_.curve.push_back({event.time_ns, live});
    }
  }
  return std::move(timeline_);
}

}  // namespace reprise::formats
