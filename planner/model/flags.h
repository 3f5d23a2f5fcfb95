// SPDX-License-Identifier: Apache-2.0
//
// Plans as retention flags, and the generator that turns flags into execs.
//
// One flag per gap and tail of every value (problem.h):
//
//   save    the value stays present through the gap
//   share   it is discarded; once recomputed in this gap, it stays to its end
//   again   it is discarded, and discarded again after each exec that needed it
//
// The generator walks the base order. Before each op it recomputes absent
// inputs depth-first (a *burst*), each just before its first reader; after the
// op, its inputs and outputs enter their next gap. Lives end at their last
// reader, so no flag holds memory longer than it is useful. The same flags
// always give the same execs, and `WithFrees` of these execs has the same peak
// (GeneratorTest.AgreesWithTheEvaluator).
//
// Recomputing an old version while a newer one is present discards the newer
// one. If that is impossible (the newer one is held, pinned or cannot be
// recomputed), the schedule is reported as invalid and never returned.
//
// One Generate is O(execs + arities) and allocates nothing after the first
// calls.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "planner/model/effort.h"
#include "planner/model/problem.h"

namespace reprise::planner {

enum class Retention : uint8_t { kSave, kShare, kAgain };

using Flags = std::vector<Retention>;

// The flags of the base order: gaps `save`, tails `again`.
Flags BaseFlags(const Problem& problem);

// Returns flags under which the generator reproduces, as closely as it can,
// what a list of execs keeps and recomputes.
Flags FlagsOfExecs(const Problem& problem, const std::vector<OpId>& execs);

struct Generated {
  bool valid = false;
  bool too_slow = false;  // stopped: above the time the caller allowed
  int64_t time_ns = 0;
  int64_t peak_bytes = 0;
  int32_t peak_exec = -1;  // position in execs() of the first peak
  OpId peak_at = kNoOp;    // base op whose burst has the peak, or that op
};

class Generator {
 public:
  explicit Generator(const Problem& problem);

  // Generates the execs of `flags`, their time and peak. Stops once the time
  // exceeds `most_ns`.
  Generated Generate(const Flags& flags,
                     int64_t most_ns = std::numeric_limits<int64_t>::max());
  // The same, and spends its ticks.
  Generated Generate(const Flags& flags, Effort& effort) {
    const int64_t before = ticks_;
    const Generated generated = Generate(flags);
    effort.Spend(ticks_ - before);
    return generated;
  }

  // Execs of the last Generate.
  const std::vector<OpId>& execs() const { return execs_; }
  // Bytes while each exec runs.
  const std::vector<int64_t>& bytes_at() const { return bytes_at_; }
  // By op: the position of its first run in execs().
  const std::vector<int32_t>& first_exec() const { return first_exec_; }

  // Execs and arities visited since construction.
  int64_t ticks() const { return ticks_; }

 private:
  struct Life {
    StorageId storage;
    int32_t born, last;  // positions in execs()
    bool first;
  };
  // An op that waits for its inputs. The bottom frame of a burst is a base op,
  // or the end of the step.
  struct Frame {
    OpId op;
    int32_t next_need;
    int32_t tries;
    ValueId asked;
    int32_t transient_begin;  // into transient_
  };

  // Clears the state of the last Generate.
  void Reset();
  // Returns what an op needs; op_count stands for the end of the step.
  std::span<const ValueId> NeedOf(OpId op) const;
  // Recomputes what is absent before base op `at`. Returns false if that is
  // impossible with these flags, or too slow.
  bool Burst(OpId at);
  // Returns whether an op may run again to make this value.
  bool MayRun(OpId op, ValueId asked);
  // Runs an op whose inputs are present. Returns false if an output clashes
  // with a present value that cannot be discarded.
  bool Run(OpId op, bool again);
  // Discards outputs of a re-run that were not requested, unless their gap
  // keeps them.
  void AfterRerun(OpId op, ValueId asked);
  // Inputs and outputs of a base op enter their next gap.
  void AfterFirstRun(OpId op);
  // A value enters a gap after `at`: it is discarded unless the flag is `save`
  // or the program holds it.
  void EnterGap(ValueId v, int32_t flag, OpId at);
  // Returns whether the first life of a storage is still held, or pinned.
  bool IsHeld(StorageId s) const;
  // Computes lives, memory and the peak of the execs.
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
  std::vector<int64_t> duplicates_;  // by exec: bytes allocated a second time
  std::vector<Frame> frames_;
  std::vector<ValueId> transient_;    // to drop after the frame's op
  std::vector<uint8_t> was_present_;  // scratch of Run
  std::vector<std::pair<OpId, int32_t>> seeded_;  // op, position of a re-run
  std::vector<int64_t> bytes_at_;
  OpId at_ = 0;  // the base op whose inputs are being made
  int64_t time_ns_ = 0, most_ns_ = 0;
  int64_t ticks_ = 0;
};

}  // namespace reprise::planner
