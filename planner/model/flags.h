// SPDX-License-Identifier: Apache-2.0
//
// Plans as retention flags, and the generator that turns flags into execs.
//
// One flag per gap and tail of every value (problem.h):
//
//   save    the value stays present through the gap
//   share   it is dropped; once re-created in this gap it stays to its end
//   again   it is dropped, and dropped again after each exec that wanted it
//
// The generator walks the base order. Before each op it re-creates absent
// inputs depth-first (a *burst*), each just before its first reader; after the
// op, its inputs and outputs enter their next gap. Lives end at their last
// reader, so no flag holds memory longer than it is useful. The same flags
// always give the same execs, and `WithFrees` of these execs replays to the
// same peak (GeneratorTest.AgreesWithTheEvaluator).
//
// Making an old version again while a newer one is present drops the newer
// one; a schedule in which that is impossible (the newer one is held, pinned
// or cannot be made again) is reported as not valid and never handed out.
//
// One Generate is O(execs + arities) and allocates nothing once warm.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

enum class Retention : uint8_t { kSave, kShare, kAgain };

using Flags = std::vector<Retention>;

// Gaps `save`, tails `again`: the base order.
Flags BaseFlags(const Problem& problem);

// Flags under which the generator repeats, as nearly as it can, what a list
// of execs keeps and re-creates.
Flags FlagsOfExecs(const Problem& problem, const std::vector<OpId>& execs);

struct Generated {
  bool valid = false;
  bool too_slow = false;  // given up: above the time the caller asked for
  int64_t time_ns = 0;
  int64_t peak_bytes = 0;
  int32_t peak_exec = -1;  // position in execs() of the first peak
  OpId peak_at = kNoOp;    // base op that the peak's burst leads to, or itself
};

class Generator {
 public:
  explicit Generator(const Problem& problem);

  // Gives up once the time exceeds `most_ns`.
  Generated Generate(const Flags& flags,
                     int64_t most_ns = std::numeric_limits<int64_t>::max());

  // Of the last Generate.
  const std::vector<OpId>& execs() const { return execs_; }
  // Storages alive while the exec at this position runs; appended.
  void AliveAt(int32_t exec, std::vector<StorageId>& storages) const;
  // Bytes while each exec runs.
  const std::vector<int64_t>& bytes_at() const { return bytes_at_; }
  // By op: its position in execs() when it ran for the first time.
  const std::vector<int32_t>& first_exec() const { return first_exec_; }

  // Execs and arities visited since construction.
  int64_t ticks() const { return ticks_; }

 private:
  struct Life {
    StorageId storage;
    int32_t born, last;  // positions in execs()
    bool first;
  };
  // An op waiting for its inputs. The bottom frame of a burst is a base op or
  // the end of the step.
  struct Frame {
    OpId op;
    int32_t next_need;
    int32_t tries;
    ValueId asked;
    int32_t transient_begin;  // into transient_
  };

  void Reset();
  std::span<const ValueId> NeedOf(OpId op) const;
  bool Burst(OpId at);
  bool MayRun(OpId op, ValueId asked);
  bool Run(OpId op, bool again);
  void AfterRerun(OpId op, ValueId asked);
  void AfterFirstRun(OpId op);
  void EnterGap(ValueId v, int32_t flag, OpId at);
  bool IsHeld(StorageId s) const;
  void Account(Generated& result);

  const Problem& problem_;
  const Flags* flags_ = nullptr;

  std::vector<ValueId> present_;     // by storage; kNoValue: absent
  std::vector<int32_t> life_;        // by storage: index of its current life
  std::vector<int32_t> gap_;         // by value: its current flag
  std::vector<int32_t> runs_;        // by op
  std::vector<int32_t> first_exec_;  // by op
  std::vector<Life> lives_;
  std::vector<OpId> execs_;
  std::vector<int64_t> duplicates_;  // by exec: bytes allocated once more
  std::vector<Frame> frames_;
  std::vector<ValueId> transient_;    // to drop after the frame's op
  std::vector<uint8_t> was_present_;  // scratch of Run
  std::vector<std::pair<OpId, int32_t>> seeded_;  // op, position of a re-run
  std::vector<int64_t> bytes_at_;
  OpId at_ = 0;  // base op being led to
  int64_t time_ns_ = 0, most_ns_ = 0;
  int64_t ticks_ = 0;
};

}  // namespace reprise::planner
