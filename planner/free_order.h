// SPDX-License-Identifier: Apache-2.0
//
// A list of execs in any order that respects the dependences, with the memory
// of every position kept up to date: the state of the search for a pebbling
// (squeeze.h).
//
// Every exec of an op begins a new life of what it writes; a life ends at its
// last reader before the next exec of the same op. So a list is one where
// every exec finds an earlier exec of the makers of its inputs, and runs may
// stand anywhere else (`ExecList` keeps first runs in base order instead, and
// knows every feature of a step graph).
//
//   Shift    one exec moves, past others but not past another exec of its op
//   Remake   the life of a storage ends early; a chain of execs in front of a
//            later reader makes it again, with what that needs
//   Remove   a re-run goes; its readers fall back on the life before
//
// After Remake and Remove, runs that nobody reads any more go too. A change
// costs O(list length) in four flat copies plus the lives of the storages that
// the moved ops read and write, not a walk over all arities. Undo takes the
// last change back.
//
// Applies() says which problems this form can state: each storage one version,
// nothing that the program holds beyond its last reader, no duplicated outputs,
// no stored generator state, and re-runs anywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/problem.h"
#include "planner/random.h"

namespace reprise::planner {

class FreeOrder {
 public:
  static bool Applies(const Problem& problem);

  // Over() is counted in units of 1/16384 of it.
  FreeOrder(const Problem& problem, int64_t budget_bytes);

  // False where an exec finds no earlier one of a maker of its inputs.
  bool Assign(const std::vector<OpId>& execs);
  std::vector<OpId> Execs() const;

  int32_t size() const { return static_cast<int32_t>(seq_.size()); }
  OpId OpAt(int32_t at) const { return op_[seq_[at]]; }
  // Bytes while the exec at a position runs, rounded up, static included.
  int64_t BytesAt(int32_t at) const {
    return static_cast<int64_t>(load_[at]) << byte_shift_;
  }
  // Sum over positions of the square of the units above the budget.
  int64_t Over() const;
  // Some position above the budget, at random; -1: none.
  int32_t OverfullPosition(Random& random) const;

  // Each returns false, and changes nothing, where the change is not possible.
  bool Shift(int32_t from, int32_t to);
  // A storage alive at `at`, though not used there, is dropped and made again
  // before its next reader: just before it, or where memory is lowest. Of what
  // the makers need and is not there then, `extend_percent` of 100 stay alive
  // until then instead; a chain of more than `most_chain` execs is given up.
  bool Remake(int32_t at, int extend_percent, int most_chain, Random& random);
  bool Remove(int32_t at);
  void Undo();

  // Positions and arities looked at.
  int64_t ticks() const { return ticks_; }

 private:
  struct Life {
    int32_t begin, end;
  };

  Life LifeOf(StorageId s, int32_t number) const;
  // The number of the exec of an op that a reader at `at` sees; -1: none.
  int32_t SeenBy(OpId op, int32_t at) const;
  bool IsUsedAt(StorageId s, int32_t at) const;
  int32_t NextUse(StorageId s, int32_t after) const;
  bool IsDead(int32_t instance) const;

  void Begin();
  void Touch(OpId op);
  void Mark(StorageId s, int32_t first, int32_t last);
  void Unmark();
  void ApplyMarked(int sign);
  int32_t Across(int32_t at) const;
  int32_t NumberOf(int32_t instance) const;
  void Insert(int32_t at, const std::vector<OpId>& ops);
  void Erase(int32_t at);
  void DropDead();
  bool Plan(OpId op, int32_t at, int extend_percent, int most_chain,
            Random& random);
  void Renumber(int32_t from, int32_t to);

  const Problem& problem_;
  int byte_shift_ = 0;  // loads are in bytes >> byte_shift_, rounded up
  int32_t budget_ = 0;  // rounded down
  int32_t over_scale_ = 0;
  std::vector<int32_t> size_;       // by storage, in load units
  std::vector<int32_t> workspace_;  // by op, in load units
  int32_t static_ = 0;
  std::vector<OpId> maker_;            // by storage
  std::vector<int32_t> reader_begin_;  // CSR by storage: ops that read it
  std::vector<OpId> readers_;
  std::vector<int32_t> read_begin_;  // CSR by op: storages it reads
  std::vector<StorageId> reads_;
  std::vector<uint8_t> may_rerun_;  // by op

  // Instances are execs; ids are used again.
  std::vector<int32_t> seq_;                   // by position: instance
  std::vector<int32_t> load_;                  // by position
  std::vector<int32_t> pos_;                   // by instance
  std::vector<OpId> op_;                       // by instance
  std::vector<std::vector<int32_t>> runs_of_;  // by op: instances in order
  std::vector<int32_t> unused_;

  // Of the change under way.
  struct Marked {
    StorageId storage;
    int32_t first, last;  // lives, by number
  };
  std::vector<Marked> marked_;
  std::vector<int64_t> mark_;  // by storage: place in marked_ + marked_begin_
  int64_t marked_begin_ = 1;
  std::vector<OpId> chain_;
  std::vector<int32_t> planned_;  // by op: epoch in which it is in the chain
                                  // or extended
  int32_t plan_epoch_ = 0;
  std::vector<int32_t> suspects_;  // instances that may have lost all readers

  // To undo.
  std::vector<int32_t> old_seq_, old_load_, old_unused_;
  size_t old_instances_ = 0;
  std::vector<int32_t> erased_;  // instances, free once the change is final
  struct Touched {
    OpId op;
    std::vector<int32_t> runs;
  };
  std::vector<Touched> touched_;
  size_t touched_count_ = 0;
  std::vector<int32_t> touch_;  // by op: epoch
  int32_t touch_epoch_ = 0;

  mutable int64_t ticks_ = 0;
};

}  // namespace reprise::planner
