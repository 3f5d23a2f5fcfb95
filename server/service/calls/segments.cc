// SPDX-License-Identifier: Apache-2.0
//
// GetSegments: the allocator's segments at the end of a recording, cut to a
// screen. Blocks of less than a pixel are drawn together with their neighbours
// until a pixel is full, so that the pieces of a segment always add up to it:
// the blocks that a picture is too small for are in it as bytes.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "server/service/calls/handlers.h"
#include "server/service/memory/evidence.h"
#include "server/service/memory/step_cache.h"

namespace reprise::server {

namespace {

constexpr uint32_t kDefaultWidth = 1000;
constexpr uint32_t kMostWidth = 4096;
constexpr size_t kMostSegments = 200;
// Of all segments together; with 20 bytes a piece some 200 kB.
constexpr int kMostPieces = 10'000;

// Adds blocks to pieces of at least `least_bytes`.
class PieceWriter {
 public:
  PieceWriter(const RecordedStep& step, int64_t least_bytes, v1::Segment& to)
      : step_(step), least_bytes_(least_bytes), to_(to) {}

  void Add(int64_t bytes, uint32_t state, uint32_t stack) {
    // A block that is large enough stands alone.
    if (bytes >= least_bytes_) Flush();
    const bool allocated = state == v1::BLOCK_STATE_ALLOCATED;
    open_.set_bytes(open_.bytes() + bytes);
    open_.set_blocks(open_.blocks() + 1);
    if (allocated) {
      open_.set_allocated_bytes(open_.allocated_bytes() + bytes);
      open_.set_allocated_blocks(open_.allocated_blocks() + 1);
      if (bytes > largest_) {
        largest_ = bytes;
        stack_ = stack;
      }
    } else if (state == v1::BLOCK_STATE_AWAITING_FREE) {
      open_.set_awaiting_bytes(open_.awaiting_bytes() + bytes);
    }
    if (open_.bytes() >= least_bytes_) Flush();
  }

  // Returns how many blocks share a piece.
  uint64_t Finish() {
    Flush();
    return folded_;
  }

 private:
  void Flush() {
    if (open_.blocks() == 0) return;
    if (largest_ > 0) {
      const std::string& stack = step_.Text(stack_);
      open_.set_owner(stack.substr(0, stack.find('\n')));
      open_.set_category(CategoryOf(
          EvidenceIn(stack, "", v1::PHASE_UNSPECIFIED), /*freed=*/false));
    }
    if (open_.blocks() > 1) folded_ += open_.blocks();
    *to_.add_pieces() = std::move(open_);
    open_.Clear();
    largest_ = 0;
    stack_ = 0;
  }

  const RecordedStep& step_;
  const int64_t least_bytes_;
  v1::Segment& to_;
  v1::SegmentPiece open_;
  int64_t largest_ = 0;
  uint32_t stack_ = 0;
  uint64_t folded_ = 0;
};

// Sums of one segment; bytes that no block covers are free.
v1::Segment SumOf(const v1::MemorySegment& from) {
  v1::Segment to;
  to.set_address(from.address());
  to.set_bytes(from.bytes());
  to.set_stream(from.stream());
  to.set_pool(from.pool());
  to.set_blocks(static_cast<uint32_t>(from.block_bytes_size()));
  for (int b = 0; b < from.block_bytes_size(); ++b) {
    const int64_t bytes = from.block_bytes(b);
    switch (from.block_state(b)) {
      case v1::BLOCK_STATE_ALLOCATED:
        to.set_allocated_bytes(to.allocated_bytes() + bytes);
        break;
      case v1::BLOCK_STATE_AWAITING_FREE:
        to.set_awaiting_bytes(to.awaiting_bytes() + bytes);
        break;
      default:
        to.set_largest_free_bytes(std::max(to.largest_free_bytes(), bytes));
    }
  }
  return to;
}

int64_t RoundingOf(const v1::MemorySegment& segment) {
  int64_t bytes = 0;
  for (int b = 0; b < segment.block_bytes_size(); ++b) {
    if (segment.block_state(b) != v1::BLOCK_STATE_ALLOCATED) continue;
    if (segment.block_asked(b) == 0) continue;
    bytes +=
        std::max<int64_t>(segment.block_bytes(b) - segment.block_asked(b), 0);
  }
  return bytes;
}

uint64_t DrawPieces(const RecordedStep& step, const v1::MemorySegment& from,
                    int64_t least_bytes, v1::Segment& to) {
  PieceWriter writer(step, least_bytes, to);
  int64_t covered = 0;
  for (int b = 0; b < from.block_bytes_size(); ++b) {
    covered += from.block_bytes(b);
    writer.Add(from.block_bytes(b), from.block_state(b), from.block_stack(b));
  }
  if (covered < from.bytes()) {
    writer.Add(from.bytes() - covered, v1::BLOCK_STATE_FREE, 0);
  }
  return writer.Finish();
}

v1::Segments DrawSegments(const RecordedStep& step, uint32_t width) {
  v1::Segments answer;
  std::vector<size_t> order(step.segments.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return step.segments[a].bytes() > step.segments[b].bytes();
  });
  const size_t shown = std::min(order.size(), kMostSegments);
  const int64_t largest = step.segments[order[0]].bytes();
  int64_t least_bytes = std::max<int64_t>((largest + width - 1) / width, 1);
  // Many full rows would be more than a screen: then a piece is larger.
  int64_t drawn = 0;
  for (size_t i = 0; i < shown; ++i) drawn += step.segments[order[i]].bytes();
  least_bytes = std::max(least_bytes, drawn / kMostPieces);
  for (size_t i = 0; i < order.size(); ++i) {
    const v1::MemorySegment& from = step.segments[order[i]];
    v1::Segment segment = SumOf(from);
    answer.set_reserved_bytes(answer.reserved_bytes() + segment.bytes());
    answer.set_allocated_bytes(answer.allocated_bytes() +
                               segment.allocated_bytes());
    answer.set_awaiting_bytes(answer.awaiting_bytes() +
                              segment.awaiting_bytes());
    answer.set_largest_free_bytes(
        std::max(answer.largest_free_bytes(), segment.largest_free_bytes()));
    answer.set_block_count(answer.block_count() + segment.blocks());
    answer.set_rounding_bytes(answer.rounding_bytes() + RoundingOf(from));
    if (i < shown) {
      answer.set_folded_blocks(answer.folded_blocks() +
                               DrawPieces(step, from, least_bytes, segment));
      *answer.add_segments() = std::move(segment);
    } else {
      answer.set_folded_segments(answer.folded_segments() + 1);
      answer.set_folded_bytes(answer.folded_bytes() + segment.bytes());
      answer.set_folded_allocated_bytes(answer.folded_allocated_bytes() +
                                        segment.allocated_bytes());
    }
  }
  answer.set_segment_count(order.size());
  answer.set_free_bytes(answer.reserved_bytes() - answer.allocated_bytes() -
                        answer.awaiting_bytes());
  return answer;
}

}  // namespace

StatusOr<v1::Segments> GetSegments(Services& services,
                                   const v1::GetSegmentsRequest& request) {
  const uint32_t width =
      request.width_px() == 0 ? kDefaultWidth : request.width_px();
  if (width > kMostWidth) {
    return InvalidArgument(
        StrCat("width_px: must be 0 to ", kMostWidth, ", got ", width));
  }
  ASSIGN_OR_RETURN(
      const auto step,
      services.steps.Of(services.store, request.run_id(), /*planned=*/false));
  // Only snapshots of PyTorch's allocator have them.
  if (step->segments.empty()) return v1::Segments();
  return DrawSegments(*step, width);
}

}  // namespace reprise::server
