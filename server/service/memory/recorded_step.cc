// SPDX-License-Identifier: Apache-2.0
#include "server/service/memory/recorded_step.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/graph_proto.h"
#include "profiler/include/reprise_wire.h"
#include "server/store/chunk_rows.h"
#include "server/store/plan_rows.h"

namespace reprise::server {

namespace {

// How far back to search for a baseline, and the most that is indexed.
constexpr int64_t kMostChunksBack = 8192;
constexpr size_t kMostEvents = 12'000'000;
// Texts that a stack may be; fewer are stored of a session.
constexpr uint32_t kMostStack = (1U << 29) - 1;

struct MemoryEvent {
  int64_t time_ns = 0;
  int64_t bytes = 0;  // the change; of a baseline, all that is alive
  uint64_t address = 0;
  uint32_t name = 0;
  uint32_t stack : 29 = 0;
  uint32_t phase : 2 = 0;
  uint32_t baseline : 1 = 0;
};

StatusOr<v1::Columns> Parse(std::string_view body) {
  v1::Columns columns;
  if (columns.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return columns;
  }
  return Status(Code::kDataLoss, "a stored chunk is damaged");
}

// Reads one packed column of small numbers from a serialized Columns, without
// the others.
std::vector<uint64_t> ReadColumn(std::string_view body, int field) {
  std::vector<uint64_t> values;
  google::protobuf::io::CodedInputStream in(
      reinterpret_cast<const uint8_t*>(body.data()),
      static_cast<int>(body.size()));
  while (const uint32_t tag = in.ReadTag()) {
    uint32_t length = 0;
    if ((tag & 7) != 2 || !in.ReadVarint32(&length)) break;
    if (static_cast<int>(tag >> 3) != field) {
      if (!in.Skip(static_cast<int>(length))) break;
      continue;
    }
    const auto limit = in.PushLimit(static_cast<int>(length));
    uint64_t value = 0;
    while (in.BytesUntilLimit() > 0 && in.ReadVarint64(&value)) {
      values.push_back(value);
    }
    in.PopLimit(limit);
  }
  return values;
}

bool MayHaveBaseline(std::string_view body) {
  const std::vector<uint64_t> extra =
      ReadColumn(body, v1::Columns::kExtraFieldNumber);
  return std::find(extra.begin(), extra.end(), uint64_t{REPRISE_BASELINE}) !=
         extra.end();
}

class StepBuilder {
 public:
  StepBuilder(Database& db, const StepRow& row) : db_(db), row_(row) {
    made_.step = row.report.step();
    made_.incomplete = row.report.incomplete();
    made_.session_id = row.session_id;
    made_.end_ns = row.report.end_ns();
    made_.begin_ns = made_.end_ns - row.report.step_ns();
  }

  StatusOr<RecordedStep> Build(const std::string& run_id) {
    RETURN_IF_ERROR(FindBegin());
    RETURN_IF_ERROR(VisitChunksForwards(
        db_, row_.session_id, from_, made_.end_ns,
        [&](int64_t, std::string_view body) -> Status {
          ASSIGN_OR_RETURN(const v1::Columns columns, Parse(body));
          return Take(columns);
        }));
    if (mark_ns_ >= 0 && mark_ns_ <= made_.end_ns) made_.begin_ns = mark_ns_;
    made_.step_ns = std::max<int64_t>(made_.end_ns - made_.begin_ns, 0);
    if (events_.empty() || !known_) {
      return NotFound(StrCat("step ", made_.step, " of run ", run_id,
                             ": its baseline was not recorded"));
    }
    if (!sorted_) {
      std::stable_sort(events_.begin(), events_.end(),
                       [](const MemoryEvent& a, const MemoryEvent& b) {
                         return a.time_ns < b.time_ns;
                       });
    }
    ASSIGN_OR_RETURN(made_.texts, LoadNames(db_, row_.session_id));
    Follow();
    return std::move(made_);
  }

 private:
  // Finds the oldest chunk that is needed: the one with the last baseline before
  // the step, or as far as there are any.
  Status FindBegin() {
    ASSIGN_OR_RETURN(const std::vector<ListedChunk> chunks,
                     ListChunksBackwards(db_, row_.session_id, made_.end_ns,
                                         kMostChunksBack));
    int64_t records = 0;
    for (const ListedChunk& chunk : chunks) {
      from_ = chunk.place;
      records += chunk.count;
      if (chunk.count == 0) continue;
      ASSIGN_OR_RETURN(const std::string body,
                       LoadChunkBody(db_, row_.session_id, chunk.place));
      if (!MayHaveBaseline(body)) continue;
      ASSIGN_OR_RETURN(const v1::Columns columns, Parse(body));
      for (int i = 0; i < columns.kind_size(); ++i) {
        found_baseline_ = found_baseline_ ||
                          (columns.kind(i) == v1::RECORD_KIND_ALLOC &&
                           CellOf(columns.extra(), i) == REPRISE_BASELINE &&
                           static_cast<int64_t>(CellOf(columns.start_ns(),
                                                       i)) <= made_.begin_ns);
      }
      // What is older than the baseline is not used.
      if (found_baseline_) break;
    }
    // Not more than needed: a growing list would take twice its size.
    events_.reserve(std::min(static_cast<size_t>(records), kMostEvents));
    return OkStatus();
  }

  Status Take(const v1::Columns& columns) {
    for (const v1::MemorySegment& segment : columns.segments()) Join(segment);
    const int count = std::min(columns.kind_size(), columns.start_ns_size());
    for (int i = 0; i < count; ++i) {
      const auto time_ns = static_cast<int64_t>(columns.start_ns(i));
      // A column of zeros is stored as empty, for example if all records are
      // ALLOC.
      const uint64_t extra = CellOf(columns.extra(), i);
      switch (columns.kind(i)) {
        case v1::RECORD_KIND_STEP:
          if (extra == made_.step) mark_ns_ = std::max(mark_ns_, time_ns);
          break;
        case v1::RECORD_KIND_OP_BEGIN:
          if (CellOf(columns.op(), i) != 0) {
            name_of_op_[CellOf(columns.op(), i)] = CellOf(columns.name(), i);
          }
          break;
        case v1::RECORD_KIND_ALLOC:
          if (i >= columns.bytes_size() ||
              (extra != REPRISE_ALLOC && extra != REPRISE_FREE &&
               extra != REPRISE_BASELINE)) {
            break;
          }
          RETURN_IF_ERROR(Add({.time_ns = time_ns,
                               .bytes = columns.bytes(i),
                               .address = CellOf(columns.ptr(), i),
                               .name = NameOf(columns, i),
                               .stack = CellOf(columns.stack(), i) & kMostStack,
                               .phase = CellOf(columns.corr(), i) & 3U,
                               .baseline = extra == REPRISE_BASELINE}));
          break;
        default:
          break;
      }
    }
    return OkStatus();
  }

  Status Add(const MemoryEvent& event) {
    if (event.time_ns > made_.end_ns) return OkStatus();
    known_ = known_ || event.baseline;
    if (!known_) return OkStatus();
    if (events_.size() == kMostEvents) {
      return ResourceExhausted(StrCat(
          "step ", made_.step, " has more than ", kMostEvents,
          " memory events, the most that are shown; record fewer steps"));
    }
    sorted_ =
        sorted_ && (events_.empty() || events_.back().time_ns <= event.time_ns);
    events_.push_back(event);
    return OkStatus();
  }

  uint32_t NameOf(const v1::Columns& columns, int i) const {
    const uint32_t name = CellOf(columns.name(), i);
    const uint64_t op = CellOf(columns.op(), i);
    if (name != 0 || op == 0) return name;
    const auto found = name_of_op_.find(op);
    return found == name_of_op_.end() ? 0 : found->second;
  }

  void Join(const v1::MemorySegment& part) {
    if (!segments_.empty() && segments_.back().address() == part.address()) {
      v1::MemorySegment& whole = segments_.back();
      whole.mutable_block_bytes()->MergeFrom(part.block_bytes());
      whole.mutable_block_state()->MergeFrom(part.block_state());
      whole.mutable_block_asked()->MergeFrom(part.block_asked());
      whole.mutable_block_stack()->MergeFrom(part.block_stack());
    } else {
      segments_.push_back(part);
    }
  }

  // The newest allocation at an address.
  struct Place {
    size_t index = 0;
    uint32_t uses = 0;
    bool alive = false;
  };
  using Places = std::unordered_map<uint64_t, Place>;

  // Walks the events: what is alive after each, and when each allocation was
  // born and died.
  void Follow() {
    std::vector<int64_t> times, levels;
    times.reserve(events_.size() + 1);
    levels.reserve(events_.size() + 1);
    std::vector<Allocation> before, born;
    std::vector<int64_t> before_bytes;
    Places places;
    int64_t live = 0;
    bool known = false, begun = false;
    for (const MemoryEvent& event : events_) {
      if (!known && !event.baseline) continue;
      known = true;
      const int64_t time_ns = event.time_ns - made_.begin_ns;
      // Events at the very begin come after it, a baseline there is it.
      if (!begun && (time_ns > 0 || (time_ns == 0 && !event.baseline))) {
        // The state at the begin, which no event has.
        begun = true;
        if (times.empty() || times.back() < 0) {
          times.push_back(0);
          levels.push_back(times.size() == 1 ? event.bytes : live);
        }
        made_.first = times.size() - 1;
      }
      const auto at = static_cast<uint32_t>(times.size());
      live = event.baseline ? event.bytes : live + event.bytes;
      times.push_back(time_ns);
      levels.push_back(live);
      if (event.baseline) {
        // A new window: nothing says what of the earlier one is still there.
        for (auto& [address, place] : places) {
          if (place.alive) born[place.index].died = at;
          place.alive = false;
        }
      } else if (event.bytes > 0) {
        if (event.address == 0) continue;  // merged from several
        Place& place = places[event.address];
        if (place.alive) born[place.index].died = at;  // its free was not seen
        born.push_back({.address = event.address,
                        .born = at,
                        .name = event.name,
                        .stack = event.stack,
                        .use = place.uses++,
                        .phase = static_cast<v1::Phase>(event.phase)});
        place.index = born.size() - 1;
        place.alive = true;
      } else if (event.bytes < 0 && event.address != 0) {
        Place& place = places[event.address];
        if (place.alive) {
          born[place.index].died = at;
        } else {
          before.push_back({.address = event.address, .died = at});
          before_bytes.push_back(-event.bytes);
          place.uses = std::max(place.uses, 1U);
        }
        place.alive = false;
      }
    }
    if (!begun) {
      if (times.back() < 0) {
        times.push_back(0);
        levels.push_back(live);
      }
      made_.first = times.size() - 1;
    }
    std::vector<MemoryEvent>().swap(events_);
    AddBlocks(places, before, before_bytes);
    born.insert(born.begin(), before.begin(), before.end());
    made_.lifetimes.Build(std::move(born));
    made_.before_bytes = std::move(before_bytes);
    made_.curve = MemoryCurve(std::move(times), std::move(levels), made_.first);
  }

  // A block that is allocated at the end, and that no event speaks of, was there
  // before.
  void AddBlocks(const Places& places, std::vector<Allocation>& before,
                 std::vector<int64_t>& before_bytes) const {
    for (const v1::MemorySegment& segment : segments_) {
      uint64_t address = segment.address();
      for (int b = 0; b < segment.block_bytes_size(); ++b) {
        const bool held = segment.block_state(b) == v1::BLOCK_STATE_ALLOCATED;
        const auto place = places.find(address);
        if (held && (place == places.end() || !place->second.alive)) {
          before.push_back(
              {.address = address, .stack = segment.block_stack(b)});
          before_bytes.push_back(segment.block_asked(b) > 0
                                     ? segment.block_asked(b)
                                     : segment.block_bytes(b));
        }
        address += static_cast<uint64_t>(segment.block_bytes(b));
      }
    }
  }

  Database& db_;
  const StepRow& row_;
  RecordedStep made_;
  ChunkPlace from_;
  bool found_baseline_ = false;
  int64_t mark_ns_ = -1;
  bool known_ = false, sorted_ = true;
  std::vector<MemoryEvent> events_;
  std::vector<v1::MemorySegment> segments_;  // parts of one are joined
  std::unordered_map<uint64_t, uint32_t> name_of_op_;
};

}  // namespace

int64_t RecordedStep::BytesOf(size_t allocation) const {
  const Allocation& one = lifetimes.all()[allocation];
  if (one.born == Allocation::kBefore) return before_bytes[allocation];
  return curve.bytes(one.born) - (one.born > 0 ? curve.bytes(one.born - 1) : 0);
}

size_t RecordedStep::MemoryBytes() const {
  size_t bytes = curve.MemoryBytes() + lifetimes.MemoryBytes() +
                 before_bytes.capacity() * sizeof(int64_t);
  for (const std::string& text : texts) bytes += text.capacity() + sizeof text;
  return bytes;
}

StatusOr<RecordedStep> ReadRecordedStep(Database& db, const std::string& run_id,
                                        const StepRow& row,
                                        const std::string& graph_id) {
  ASSIGN_OR_RETURN(RecordedStep step, StepBuilder(db, row).Build(run_id));
  if (graph_id.empty()) return step;
  const StatusOr<v1::StepGraph> proto = LoadGraph(db, graph_id);
  if (proto.status().code() == Code::kNotFound) return step;
  RETURN_IF_ERROR(proto.status());
  ASSIGN_OR_RETURN(const planner::StepGraph graph, formats::ToPlanner(*proto));
  NameBefore(graph, step);
  return step;
}

}  // namespace reprise::server
