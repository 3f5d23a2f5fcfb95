// SPDX-License-Identifier: Apache-2.0
#include "formats/import/snapshot.h"

#include <algorithm>
#include <vector>

#include "base/str_cat.h"

namespace reprise::formats {

namespace {

constexpr size_t kMostDevices = 1024;
constexpr int64_t kMostEntryBytes = int64_t{1} << 50;
constexpr uint64_t kMostBlocks = 1 << 27;
constexpr int64_t kMostMicroseconds = int64_t{1} << 52;
// Without times, events are placed one microsecond apart.
constexpr int64_t kNsPerEvent = 1000;

// One entry of a trace. bytes 0: does not change what is alive.
struct TraceEntry {
  int64_t bytes = 0;
  uint64_t address = 0;
  int64_t time_us = -1;
  bool oom = false;
  bool stack_lost = false;  // was read long before and is forgotten
};

Status CheckDict(const PickleValue& item, const char* what) {
  if (!item.is_dict()) return InvalidArgument(StrCat(what, " that is no dict"));
  if (item.items().size() <= 2 * kMostSnapshotKeys) return OkStatus();
  return InvalidArgument(
      StrCat(what, " of more than ", kMostSnapshotKeys, " keys"));
}

StatusOr<TraceEntry> ReadEntry(const PickleValue& item) {
  RETURN_IF_ERROR(CheckDict(item, "a trace entry"));
  const std::string_view word = item.TextAt("action");
  if (word.empty()) return InvalidArgument("a trace entry without its action");
  TraceEntry entry;
  entry.oom = word == "oom";
  if (!item.IntAt("time_us", entry.time_us) || entry.time_us < 0 ||
      entry.time_us > kMostMicroseconds) {
    entry.time_us = -1;
  }
  if (word != "alloc" && word != "free_completed") return entry;
  int64_t size = 0;
  if (!item.IntAt("size", size) || size < 0 || size > kMostEntryBytes) {
    return InvalidArgument(StrCat("an entry \"", word, "\" without its size"));
  }
  if (!item.AddressAt("addr", entry.address)) {
    return InvalidArgument(
        StrCat("an entry \"", word, "\" without its address"));
  }
  entry.bytes = word == "alloc" ? size : -size;
  if (const PickleValue* frames = item.Find("frames")) {
    entry.stack_lost =
        word == "alloc" && frames->kind() == PickleValue::Kind::kGone;
  }
  return entry;
}

// What a segment says about the end of the trace.
struct SegmentEnd {
  int64_t device = 0;
  int64_t reserved = 0;
  int64_t live = 0;
  uint64_t blocks = 0;
  uint64_t live_blocks = 0;
};

// One block of a segment.
struct BlockEnd {
  int64_t bytes = 0;
  int64_t asked_bytes = 0;
  v1::BlockState state = v1::BLOCK_STATE_FREE;
};

StatusOr<BlockEnd> ReadBlock(const PickleValue& item) {
  if (item.items().size() > 2 * kMostSnapshotKeys) {
    return InvalidArgument(
        StrCat("a block of more than ", kMostSnapshotKeys, " keys"));
  }
  BlockEnd block;
  const std::string_view word = item.TextAt("state");
  if (word.starts_with("active")) {
    block.state = word == "active_allocated" ? v1::BLOCK_STATE_ALLOCATED
                                             : v1::BLOCK_STATE_AWAITING_FREE;
  }
  const bool sized = item.IntAt("size", block.bytes);
  const bool asks =
      item.IntAt("requested_size", block.asked_bytes) && block.asked_bytes > 0;
  if (!asks) block.asked_bytes = 0;
  if (block.state == v1::BLOCK_STATE_FREE) return block;
  if (!sized && !asks) return InvalidArgument("a block without its size");
  if (block.bytes < 0 || block.bytes > kMostEntryBytes ||
      block.asked_bytes > kMostEntryBytes) {
    return InvalidArgument("a block of a size that cannot be");
  }
  return block;
}

StatusOr<SegmentEnd> ReadSegment(const PickleValue& item) {
  SegmentEnd end;
  RETURN_IF_ERROR(CheckDict(item, "a segment"));
  (void)item.IntAt("device", end.device);
  if (!item.IntAt("total_size", end.reserved) || end.reserved < 0 ||
      end.reserved > kMostEntryBytes) {
    return InvalidArgument("a segment without its total_size");
  }
  const PickleValue* blocks = item.Find("blocks");
  if (blocks == nullptr || !blocks->is_list()) {
    return InvalidArgument("a segment without its blocks");
  }
  end.blocks = blocks->items().size();
  for (const PickleValue& value : blocks->items()) {
    ASSIGN_OR_RETURN(const BlockEnd block, ReadBlock(value));
    if (block.state == v1::BLOCK_STATE_FREE) continue;
    if (end.live > kMostEntryBytes) {
      return InvalidArgument("a block of a size that cannot be");
    }
    // The trace has the requested size, not the rounded one.
    end.live += block.asked_bytes > 0 ? block.asked_bytes : block.bytes;
    ++end.live_blocks;
  }
  return end;
}

// Converts a segment whose blocks cover it. One whose sizes do not add up is
// ended, or filled, by a free block, and a block without a size is not shown.
RecordedSegment SegmentFor(const PickleValue& item, int64_t reserved,
                           RecordingNames& names) {
  RecordedSegment segment{.bytes = reserved};
  (void)item.AddressAt("address", segment.address);
  int64_t stream = 0;
  (void)item.IntAt("stream", stream);
  segment.stream = static_cast<uint64_t>(stream);
  segment.pool = Cut(item.TextAt("segment_type"), 64);
  int64_t at = 0;
  const auto add = [&](RecordedBlock block) {
    block.bytes = std::min(block.bytes, reserved - at);
    if (block.bytes <= 0) return;
    at += block.bytes;
    segment.blocks.push_back(block);
  };
  for (const PickleValue& value : item.Find("blocks")->items()) {
    const StatusOr<BlockEnd> block = ReadBlock(value);
    if (!block.ok()) continue;  // the first pass has refused it
    uint64_t address = 0;
    if (value.AddressAt("address", address) && address > segment.address) {
      const auto offset = static_cast<int64_t>(
          std::min<uint64_t>(address - segment.address, kMostEntryBytes));
      add({.bytes = offset - at});
    }
    add({.bytes = block->bytes > 0 ? block->bytes : block->asked_bytes,
         .asked_bytes =
             block->state == v1::BLOCK_STATE_FREE ? 0 : block->asked_bytes,
         .state = block->state,
         .stack = block->state == v1::BLOCK_STATE_FREE
                      ? 0
                      : names.InternStack(LinesOfStack(value.Find("frames")))});
  }
  add({.bytes = reserved - at});
  return segment;
}

// Passes on the live blocks of a segment as allocations, `index` being the number
// of those before it.
Status TakeLive(const PickleValue& item, StackTexts& known,
                RecordingNames& names, uint64_t& index,
                const TakeMemoryEvent& take) {
  uint64_t next = 0;
  (void)item.AddressAt("address", next);
  for (const PickleValue& value : item.Find("blocks")->items()) {
    ASSIGN_OR_RETURN(const BlockEnd block, ReadBlock(value));
    uint64_t address = next;
    (void)value.AddressAt("address", address);
    next = address + static_cast<uint64_t>(std::max<int64_t>(block.bytes, 0));
    if (block.state == v1::BLOCK_STATE_FREE) continue;
    MemoryEvent event{
        .time_ns = static_cast<int64_t>(index++) * kNsPerEvent,
        .address = address,
        .bytes = block.asked_bytes > 0 ? block.asked_bytes : block.bytes};
    const auto [name, stack] = known.Of(value.Find("frames"), names);
    event.name = name;
    event.stack = stack;
    RETURN_IF_ERROR(take(event));
  }
  return OkStatus();
}

// Results of the first pass for one device.
struct Device {
  MemorySum sum;
  int64_t first_us = -1;
  int64_t last_us = -1;
  uint64_t untimed = 0;
  uint64_t ooms = 0;
  uint64_t stacks_lost = 0;
  int64_t end_live = 0;
  uint64_t live_blocks = 0;
  int64_t reserved = 0;
  bool has_segments = false;

  // Whether it shows more than another device: events, or else live blocks.
  bool ShowsMore(const Device& other) const {
    return std::pair(sum.events, live_blocks) >
           std::pair(other.sum.events, other.live_blocks);
  }
};

struct FirstReading {
  std::vector<Device> devices;
  bool traces = false;
  uint64_t blocks = 0;

  Status TakeEntry(size_t device, const PickleValue& item) {
    if (device >= kMostDevices) {
      return InvalidArgument(StrCat("more than ", kMostDevices, " devices"));
    }
    if (devices.size() <= device) devices.resize(device + 1);
    ASSIGN_OR_RETURN(const TraceEntry entry, ReadEntry(item));
    Device& on = devices[device];
    on.ooms += entry.oom;
    on.stacks_lost += entry.stack_lost;
    if (entry.bytes == 0) return OkStatus();
    if (entry.time_us < 0) {
      ++on.untimed;
    } else {
      if (on.first_us < 0) on.first_us = entry.time_us;
      on.last_us = std::max(on.last_us, entry.time_us);
    }
    if (!on.sum.Add(std::max<int64_t>(entry.time_us, 0) * 1000, entry.bytes)) {
      return InvalidArgument("sizes that add up to more than 2^62 bytes");
    }
    return OkStatus();
  }

  Status TakeSegment(const PickleValue& item) {
    ASSIGN_OR_RETURN(const SegmentEnd end, ReadSegment(item));
    if (end.device < 0 || end.device >= static_cast<int64_t>(kMostDevices)) {
      return InvalidArgument(StrCat("a segment of device ", end.device));
    }
    const auto device = static_cast<size_t>(end.device);
    if (devices.size() <= device) devices.resize(device + 1);
    Device& on = devices[device];
    blocks += end.blocks;
    if (blocks > kMostBlocks) {
      return InvalidArgument(StrCat("more than ", kMostBlocks, " blocks"));
    }
    on.has_segments = true;
    on.live_blocks += end.live_blocks;
    on.end_live = std::min(on.end_live + end.live, int64_t{1} << 60);
    on.reserved = std::min(on.reserved + end.reserved, int64_t{1} << 60);
    return OkStatus();
  }

  StatusOr<bool> Take(const PickleSpot& spot, const PickleValue& item) {
    if (spot.key == "device_traces" && spot.nested == 1) {
      traces = true;
      RETURN_IF_ERROR(TakeEntry(spot.position, item));
      return true;
    }
    if (spot.key == "segments" && spot.nested == 0) {
      RETURN_IF_ERROR(TakeSegment(item));
      return true;
    }
    return false;
  }
};

Status CheckRoot(const PickleValue& root) {
  if (root.is_dict() && root.Find("device_traces") != nullptr) {
    return OkStatus();
  }
  return InvalidArgument(
      "is a pickle but no memory snapshot: it has no device_traces; write it "
      "with torch.cuda.memory._dump_snapshot");
}

}  // namespace

StatusOr<Snapshot> Snapshot::Open(OpenSource open, std::string name,
                                  std::optional<int> device,
                                  const PickleLimits& limits) {
  ASSIGN_OR_RETURN(ByteSource source, open());
  FirstReading first;
  ASSIGN_OR_RETURN(const PickleValue root,
                   ReadPickle(
                       source,
                       [&](const PickleSpot& spot, const PickleValue& item) {
                         return first.Take(spot, item);
                       },
                       limits));
  RETURN_IF_ERROR(CheckRoot(root));
  size_t busiest = 0;
  for (size_t i = 0; i < first.devices.size(); ++i) {
    if (first.devices[i].ShowsMore(first.devices[busiest])) busiest = i;
  }
  const size_t chosen = device ? static_cast<size_t>(*device) : busiest;
  const bool is_there = chosen < first.devices.size();
  const bool has_history = is_there && first.devices[chosen].sum.events > 0;
  if (!is_there || (!has_history && first.devices[chosen].live_blocks == 0)) {
    return NotFound(StrCat(
        "has no allocation events and nothing alive",
        device ? StrCat(" of device ", *device) : std::string(),
        "; call torch.cuda.memory._record_memory_history() before the steps to "
        "be seen"));
  }
  const Device& on = first.devices[chosen];

  Snapshot made;
  made.open_ = std::move(open);
  made.limits_ = limits;
  made.device_ = chosen;
  made.has_history_ = has_history;
  made.has_times_ = has_history && on.untimed == 0;
  made.first_us_ = std::max<int64_t>(on.first_us, 0);
  MemorySummary& summary = made.summary_;
  summary.name = std::move(name);
  summary.device = StrCat("cuda:", chosen);
  summary.format = "memory snapshot";
  summary.events = has_history ? on.sum.events : on.live_blocks;
  summary.reserved_bytes = on.reserved;
  summary.baseline_bytes = has_history ? on.end_live - on.sum.live : 0;
  if (summary.baseline_bytes < -on.sum.lowest) {
    summary.baseline_bytes = -on.sum.lowest;
    summary.notes.push_back(
        on.has_segments
            ? "its segments and its trace disagree about what is alive at the "
              "end, so what was alive before the first event is the least that "
              "is possible"
            : "it has no segments, so what was alive before the first event is "
              "the least that is possible");
  }
  summary.peak_bytes =
      has_history ? summary.baseline_bytes + on.sum.highest : on.end_live;
  if (made.has_times_) {
    summary.duration_ns = (on.last_us - made.first_us_) * 1000;
    summary.peak_at_ns =
        std::max<int64_t>(0, on.sum.highest_at_ns - made.first_us_ * 1000);
  } else if (!has_history) {
    summary.duration_ns = summary.peak_at_ns =
        static_cast<int64_t>(on.live_blocks - 1) * kNsPerEvent;
    summary.notes.push_back(
        "it has no history: what was alive when it was taken is shown, a block "
        "a microsecond, in the order of the file; when it was allocated, and "
        "what was freed before, is not known "
        "(torch.cuda.memory._record_memory_history() records it)");
  } else {
    summary.duration_ns = static_cast<int64_t>(on.sum.events - 1) * kNsPerEvent;
    summary.peak_at_ns =
        static_cast<int64_t>(on.sum.highest_event) * kNsPerEvent;
    summary.notes.push_back(
        "its events have no times, so they are shown a microsecond apart");
  }
  summary.notes.push_back(
      "which op reads which tensor is not in a memory snapshot, so there is a "
      "timeline and no step graph to plan; run the job under `reprise run` for "
      "that");
  size_t others = 0;
  for (const Device& other : first.devices) {
    others += other.sum.events > 0 || other.live_blocks > 0;
  }
  if (others > 1) {
    summary.notes.push_back(StrCat("it has ", others,
                                   " devices; this is the memory of ",
                                   summary.device, ", choose with --device"));
  }
  if (on.stacks_lost > 0) {
    summary.notes.push_back(
        StrCat(on.stacks_lost,
               " of its allocations have no known owner: the file has "
               "more different stacks than fit into the memory of the reader"));
  }
  if (on.ooms > 0) {
    summary.notes.push_back(StrCat("the device ran out of memory ", on.ooms,
                                   on.ooms == 1 ? " time" : " times",
                                   " while it was recorded"));
  }
  return made;
}

Status Snapshot::Replay(RecordingNames& names, const TakeMemoryEvent& take,
                        const TakeSegment& segment) const {
  ASSIGN_OR_RETURN(ByteSource source, open_());
  uint64_t index = 0;
  int64_t latest_ns = 0;
  StackTexts known;
  const auto visit = [&](const PickleSpot& spot,
                         const PickleValue& item) -> StatusOr<bool> {
    if (spot.key == "segments" && spot.nested == 0) {
      if (!segment && has_history_) return true;
      ASSIGN_OR_RETURN(const SegmentEnd end, ReadSegment(item));
      if (end.device != static_cast<int64_t>(device_)) return true;
      if (!has_history_) {
        RETURN_IF_ERROR(TakeLive(item, known, names, index, take));
      }
      if (segment) {
        RETURN_IF_ERROR(segment(SegmentFor(item, end.reserved, names)));
      }
      return true;
    }
    if (spot.key != "device_traces" || spot.nested != 1) return false;
    if (spot.position != device_) return true;
    ASSIGN_OR_RETURN(const TraceEntry entry, ReadEntry(item));
    if (entry.bytes == 0) return true;
    MemoryEvent event{.address = entry.address, .bytes = entry.bytes};
    // Events of different threads may be swapped; a timeline must not go back.
    event.time_ns = has_times_ ? (entry.time_us - first_us_) * 1000
                               : static_cast<int64_t>(index) * kNsPerEvent;
    latest_ns = event.time_ns = std::max(latest_ns, event.time_ns);
    ++index;
    if (entry.bytes > 0) {
      const auto [name, stack] = known.Of(item.Find("frames"), names);
      event.name = name;
      event.stack = stack;
    }
    RETURN_IF_ERROR(take(event));
    return true;
  };
  return ReadPickle(source, visit, limits_).status();
}

}  // namespace reprise::formats
