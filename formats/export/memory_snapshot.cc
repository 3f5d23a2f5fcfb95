// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

#include "formats/export/timeline.h"

namespace reprise::formats {

namespace {

// Writes a pickle of protocol 4. Repeated texts are written once.
class Pickle {
 public:
  Pickle() { out_ = std::string("\x80\x04", 2); }

  void Int(int64_t value) {
    if (value >= 0 && value < 256) {
      out_ += 'K';
      Little(static_cast<uint64_t>(value), 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      out_ += 'J';
      Little(static_cast<uint64_t>(value), 4);
    } else {
      out_ += '\x8a';
      Little(8, 1);
      Little(static_cast<uint64_t>(value), 8);
    }
  }
  void Text(std::string_view text) {
    const auto known = memo_.find(std::string(text));
    if (known != memo_.end()) {
      out_ += 'j';
      Little(known->second, 4);
      return;
    }
    out_ += 'X';
    Little(text.size(), 4);
    out_ += text;
    out_ += '\x94';
    memo_.emplace(text, next_memo_++);
  }
  void EmptyList() { Container(']'); }
  void EmptyDict() { Container('}'); }
  void Mark() { out_ += '('; }
  void Appends() { out_ += 'e'; }
  void SetItems() { out_ += 'u'; }
  void PairOfZeros() {
    Int(0);
    Int(0);
    out_ += '\x86';
  }
  void Entry(std::string_view key, int64_t value) {
    Text(key);
    Int(value);
  }
  void Entry(std::string_view key, std::string_view value) {
    Text(key);
    Text(value);
  }
  std::string Finish() { return std::move(out_) + '.'; }

 private:
  void Container(char opcode) {
    out_ += opcode;
    out_ += '\x94';
    ++next_memo_;
  }
  void Little(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      out_ += static_cast<char>(value >> (8 * i));
    }
  }

  std::string out_;
  std::unordered_map<std::string, uint32_t> memo_;
  uint32_t next_memo_ = 0;
};

struct Block {
  int64_t bytes = 0;
  uint32_t what = 0;
};

class Snapshot {
 public:
  explicit Snapshot(const ExportTimeline& timeline) : timeline_(timeline) {}

  std::string Write() {
    Follow();
    pickle_.EmptyDict();
    pickle_.Mark();
    pickle_.Text("segments");
    Segments();
    pickle_.Text("device_traces");
    pickle_.EmptyList();
    pickle_.Mark();
    Trace();
    pickle_.Appends();
    pickle_.Text("allocator_settings");
    pickle_.EmptyDict();
    pickle_.Text("external_annotations");
    pickle_.EmptyList();
    pickle_.SetItems();
    return pickle_.Finish();
  }

 private:
  // Determines what is alive at the end, and the range of addresses.
  void Follow() {
    low_ = UINT64_MAX;
    for (const ExportEvent& event : timeline_.events) {
      if (event.bytes > 0) {
        low_ = std::min(low_, event.address);
        high_ =
            std::max(high_, event.address + static_cast<uint64_t>(event.bytes));
        end_[event.address] = {event.bytes, event.what};
      } else {
        // Allocated before the first event and freed later: part of the static
        // memory.
        if (end_.erase(event.address) == 0) before_ += -event.bytes;
      }
    }
    if (low_ > high_) low_ = high_ = uint64_t{1} << 40;
  }

  void Frames(std::string_view what, std::string_view where) {
    pickle_.EmptyList();
    pickle_.Mark();
    pickle_.EmptyDict();
    pickle_.Mark();
    pickle_.Entry("filename", where.empty() ? "reprise" : where);
    pickle_.Entry("line", 0);
    pickle_.Entry("name", what.empty() ? "unknown" : what);
    pickle_.SetItems();
    pickle_.Appends();
  }

  void BlockOf(uint64_t address, int64_t bytes, std::string_view state,
               std::string_view what) {
    pickle_.EmptyDict();
    pickle_.Mark();
    pickle_.Entry("address", static_cast<int64_t>(address));
    pickle_.Entry("size", bytes);
    pickle_.Entry("requested_size", state == "inactive" ? 0 : bytes);
    pickle_.Entry("state", state);
    pickle_.Text("frames");
    if (what.empty()) {
      pickle_.EmptyList();
    } else {
      Frames(what, "");
    }
    pickle_.SetItems();
  }

  void SegmentHead(uint64_t address, int64_t total, int64_t live) {
    pickle_.EmptyDict();
    pickle_.Mark();
    pickle_.Entry("device", 0);
    pickle_.Entry("address", static_cast<int64_t>(address));
    pickle_.Entry("total_size", total);
    pickle_.Entry("allocated_size", live);
    pickle_.Entry("active_size", live);
    pickle_.Entry("requested_size", live);
    pickle_.Entry("stream", 0);
    pickle_.Entry("segment_type", "large");
    pickle_.Text("segment_pool_id");
    pickle_.PairOfZeros();
    pickle_.Text("is_expandable");
    pickle_.Int(0);
    pickle_.Text("frames");
    pickle_.EmptyList();
    pickle_.Text("blocks");
    pickle_.EmptyList();
    pickle_.Mark();
  }

  void Segments() {
    pickle_.EmptyList();
    pickle_.Mark();
    // Memory that is alive throughout. What was there at first and then freed
    // appears only in the trace: the viewer infers its beginning from its free.
    const int64_t lasting =
        std::max<int64_t>(0, timeline_.static_bytes - before_);
    if (lasting > 0) {
      const uint64_t at = high_ + (uint64_t{1} << 30);
      SegmentHead(at, lasting, lasting);
      BlockOf(at, lasting, "active_allocated", "static memory");
      pickle_.Appends();
      pickle_.SetItems();
    }
    int64_t live = 0;
    for (const auto& [address, block] : end_) live += block.bytes;
    SegmentHead(low_, static_cast<int64_t>(high_ - low_), live);
    uint64_t at = low_;
    for (const auto& [address, block] : end_) {
      // Overlapping records are an error of the source; a segment cannot show
      // them.
      if (address < at) continue;
      if (address > at) {
        BlockOf(at, static_cast<int64_t>(address - at), "inactive", "");
      }
      BlockOf(address, block.bytes, "active_allocated",
              timeline_.names[block.what].empty()
                  ? std::string_view("unknown")
                  : std::string_view(timeline_.names[block.what]));
      at = address + static_cast<uint64_t>(block.bytes);
    }
    if (at < high_)
      BlockOf(at, static_cast<int64_t>(high_ - at), "inactive", "");
    pickle_.Appends();
    pickle_.SetItems();
    pickle_.Appends();
  }

  void Action(std::string_view action, const ExportEvent& event) {
    pickle_.EmptyDict();
    pickle_.Mark();
    pickle_.Entry("action", action);
    pickle_.Entry("addr", static_cast<int64_t>(event.address));
    pickle_.Entry("size", event.bytes < 0 ? -event.bytes : event.bytes);
    pickle_.Entry("stream", 0);
    pickle_.Entry("time_us", event.time_ns / 1000);
    pickle_.Text("pool_id");
    pickle_.PairOfZeros();
    pickle_.Text("frames");
    if (event.bytes > 0) {
      Frames(timeline_.names[event.what], timeline_.names[event.where]);
    } else {
      pickle_.EmptyList();
    }
    pickle_.SetItems();
  }

  void Trace() {
    pickle_.EmptyList();
    pickle_.Mark();
    size_t in_batch = 0;
    for (const ExportEvent& event : timeline_.events) {
      if (event.bytes > 0) {
        Action("alloc", event);
      } else if (event.bytes < 0) {
        Action("free_requested", event);
        Action("free_completed", event);
      }
      if (++in_batch == 500) {
        pickle_.Appends();
        pickle_.Mark();
        in_batch = 0;
      }
    }
    pickle_.Appends();
  }

  const ExportTimeline& timeline_;
  Pickle pickle_;
  std::map<uint64_t, Block> end_;
  uint64_t low_ = 0, high_ = 0;
  int64_t before_ = 0;
};

}  // namespace

std::string WriteMemorySnapshot(const ExportTimeline& timeline) {
  return Snapshot(timeline).Write();
}

}  // namespace reprise::formats
