// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/construct/segments.h"

namespace reprise::planner {
namespace {

// Bytes by op, of which ranges change: O(block + blocks) each.
class Memory {
 public:
  explicit Memory(std::vector<int64_t> bytes)
      : bytes_(std::move(bytes)),
        added_(bytes_.size() / kBlock + 1, 0),
        most_(bytes_.size() / kBlock + 1, 0) {
    for (size_t o = 0; o < bytes_.size(); ++o) {
      most_[o / kBlock] = std::max(most_[o / kBlock], bytes_[o]);
    }
  }

  // Adds bytes to the ops from `o` to before `end`. Returns the most that one of
  // them has then.
  int64_t Add(OpId o, OpId end, int64_t bytes, int64_t& ticks) {
    int64_t most = 0;
    while (o < end) {
      const OpId block = o / kBlock;
      const OpId stop = std::min(end, (block + 1) * kBlock);
      ticks += 1;
      if (stop - o == kBlock) {
        added_[block] += bytes;
        most = std::max(most, most_[block] + added_[block]);
      } else {
        for (OpId i = o; i < stop; ++i) {
          bytes_[i] += bytes;
          most = std::max(most, bytes_[i] + added_[block]);
        }
        const auto first = bytes_.begin() + block * kBlock;
        const auto last = std::min(first + kBlock, bytes_.end());
        most_[block] = *std::max_element(first, last);
        ticks += kBlock / 8;
      }
      o = stop;
    }
    return most;
  }

 private:
  static constexpr OpId kBlock = 64;
  std::vector<int64_t> bytes_;
  std::vector<int64_t> added_;  // by block
  std::vector<int64_t> most_;   // by block, of bytes_
};

// A boundary may be this part of the burst nearer than the farthest that fits,
// where fewer bytes cross.
constexpr double kSlack = 0.3;

class Fitting {
 public:
  Fitting(const Problem& problem, const KeepSet& cut,
          const std::vector<ValueId>& ends)
      : problem_(problem),
        turn_(problem.first_backward),
        kept_(problem.versions.value_count(), 0),
        last_(problem.versions.value_count(), kNoOp),
        from_(problem.versions.value_count(), kNoOp),
        until_(problem.versions.value_count(), kNoOp),
        crossing_(turn_ + 1, 0),
        memory_(Begin(cut, ends)) {}

  std::vector<ValueId> Run(int64_t budget_bytes) {
    std::vector<OpId> boundary(turn_ + 1, turn_);
    std::vector<ValueId> ends;
    for (OpId begin = turn_; begin > 0;) {
      const OpId end = begin;
      OpId start = kNoOp;
      while (begin > 0 && Add(begin - 1, start, 1) <= budget_bytes) --begin;
      if (begin > 0) Add(begin - 1, start, -1);
      if (begin == 0) break;
      const bool fits = begin < end;
      if (fits) {
        const OpId far = begin;
        begin = Cheapest(far, end);
        for (OpId o = far; o < begin; ++o) Add(o, start, -1);
      } else {
        --begin;
      }
      const std::vector<ValueId> made = Dropped(begin, end);
      if (fits && BytesOf(made) > crossing_[begin]) {
        boundary[begin] = begin;
      } else {
        ends.insert(ends.end(), made.begin(), made.end());
      }
    }
    const std::vector<ValueId> crossing =
        CrossingValues(problem_, last_, boundary);
    ends.insert(ends.end(), crossing.begin(), crossing.end());
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    return ends;
  }

  int64_t ticks() const { return ticks_; }

 private:
  // Whether a value of the forward is made again for the backward.
  bool IsDropped(ValueId v) const {
    return kept_[v] == 0 && from_[v] != kNoOp && from_[v] < problem_.op_count;
  }

  // Finds the readers of all values. Returns the bytes by op, without bursts.
  std::vector<int64_t> Begin(const KeepSet& cut,
                             const std::vector<ValueId>& ends) {
    const Versions& versions = problem_.versions;
    const int n = problem_.op_count;
    for (const ValueId v : cut.saved) kept_[v] = 1;
    // What is only a boundary of this cut costs bytes at the next one, too.
    std::vector<uint8_t> crosses(versions.value_count(), 0);
    for (ValueId v = 0; v < versions.value_count(); ++v) {
      crosses[v] = static_cast<uint8_t>(kept_[v] == 0);
      for (const OpId use : problem_.Uses(v)) {
        if (use < turn_) {
          last_[v] = use;
        } else {
          if (from_[v] == kNoOp) from_[v] = use;
          until_[v] = std::min(use, n - 1);
        }
      }
    }
    for (const ValueId v : ends) crosses[v] = 1;
    std::vector<int64_t> bytes(n + 1, 0);
    for (ValueId v = 0; v < versions.value_count(); ++v) {
      const OpId maker = versions.maker[v];
      const int64_t size = problem_.BytesOf(v);
      ticks_ += 1 + std::ssize(problem_.Uses(v));
      if (maker < turn_ && crosses[v] != 0 && last_[v] != kNoOp) {
        crossing_[maker + 1] += size;
        crossing_[last_[v] + 1] -= size;
      }
      const OpId begin = std::max(maker, turn_);
      const OpId end = maker >= turn_  ? std::max(maker, until_[v])
                       : kept_[v] != 0 ? EndOfKept(v)
                                       : kNoOp;
      if (end < begin) continue;
      bytes[begin] += size;
      bytes[end + 1] -= size;
    }
    for (OpId o = 1; o <= turn_; ++o) crossing_[o] += crossing_[o - 1];
    for (OpId o = 1; o <= n; ++o) bytes[o] += bytes[o - 1];
    bytes.pop_back();
    for (OpId o = 0; o < n; ++o) {
      bytes[o] += problem_.static_bytes + problem_.workspace[o];
    }
    return bytes;
  }

  // Returns the op of the backward until which a saved value stays: its last
  // reader, or that before which its readers in the forward run again.
  OpId EndOfKept(ValueId v) const {
    if (until_[v] != kNoOp) return until_[v];
    OpId end = kNoOp;
    for (const OpId use : problem_.Uses(v)) {
      if (use >= turn_) break;
      for (const ValueId made : problem_.versions.Make(use)) {
        if (from_[made] < problem_.op_count) end = std::max(end, from_[made]);
      }
    }
    return end;
  }

  // Adds what an op of a burst makes, or takes it out again. `start` is the op
  // of the backward before which the burst runs; kNoOp: not known yet. Returns
  // the most bytes of an op while that is present.
  int64_t Add(OpId o, OpId& start, int sign) {
    int64_t most = 0;
    for (const ValueId v : problem_.versions.Make(o)) {
      if (!IsDropped(v)) continue;
      if (start == kNoOp) start = from_[v];
      most =
          std::max(most, memory_.Add(std::min(start, from_[v]), until_[v] + 1,
                                     sign * problem_.BytesOf(v), ticks_));
    }
    return most;
  }

  // Returns the place near `far` where the fewest bytes cross.
  OpId Cheapest(OpId far, OpId end) const {
    const OpId near = far + static_cast<OpId>((end - far) * kSlack);
    const auto first = crossing_.begin() + far;
    return static_cast<OpId>(
        std::min_element(first, crossing_.begin() + near + 1) -
        crossing_.begin());
  }

  // Returns what a burst makes.
  std::vector<ValueId> Dropped(OpId begin, OpId end) const {
    std::vector<ValueId> values;
    for (OpId o = begin; o < end; ++o) {
      for (const ValueId v : problem_.versions.Make(o)) {
        if (IsDropped(v)) values.push_back(v);
      }
    }
    return values;
  }
  int64_t BytesOf(const std::vector<ValueId>& values) const {
    int64_t bytes = 0;
    for (const ValueId v : values) bytes += problem_.BytesOf(v);
    return bytes;
  }

  const Problem& problem_;
  const OpId turn_;
  std::vector<uint8_t> kept_;      // by value: saved at the cut
  std::vector<OpId> last_;         // by value: its last reader in the forward,
  std::vector<OpId> from_;         // its first one in the backward,
  std::vector<OpId> until_;        // and its last one there
  std::vector<int64_t> crossing_;  // by op of the forward: bytes that reach it
  int64_t ticks_ = 0;
  Memory memory_;
};

}  // namespace

std::vector<ValueId> FittingEnds(const Problem& problem, const KeepSet& cut,
                                 const std::vector<ValueId>& ends,
                                 int64_t budget_bytes, Effort& effort) {
  Fitting fitting(problem, cut, ends);
  std::vector<ValueId> found = fitting.Run(budget_bytes);
  effort.Spend(fitting.ticks());
  return found;
}

}  // namespace reprise::planner
