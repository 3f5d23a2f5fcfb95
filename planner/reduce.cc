// SPDX-License-Identifier: Apache-2.0
#include "planner/reduce.h"

#include <algorithm>
#include <utility>

namespace reprise::planner {
namespace {

// What is removed may allow more to be removed; after these rounds almost
// nothing is.
constexpr int kMostReductions = 8;
// Twins are not searched among more outputs of one op than this.
constexpr size_t kMostTwins = 64;
// Ops that read more than this are not compared with their neighbours.
constexpr size_t kMostReads = 64;

bool IsSubset(const std::vector<StorageId>& all,
              const std::vector<StorageId>& of,
              const std::vector<StorageId>& or_of) {
  if (all.size() > kMostReads) return false;
  return std::all_of(all.begin(), all.end(), [&](StorageId s) {
    return std::find(of.begin(), of.end(), s) != of.end() ||
           std::find(or_of.begin(), or_of.end(), s) != or_of.end();
  });
}

bool HasState(const Op& op) { return op.state_bytes > 0; }

}  // namespace

// Removes ops and storages from a copy of the graph; the others keep their
// numbers until the end.
class Reducer {
  using Piece = Reduction::Piece;

 public:
  Reducer(const Problem& problem, const ReduceOptions& options,
          Reduction& reduction)
      : problem_(problem),
        rules_(problem.rules),
        options_(options),
        reduction_(reduction),
        bytes_(problem.bytes),
        ahead_(problem.op_count),
        behind_(problem.op_count),
        gone_into_(problem.op_count, kNoOp),
        releases_(problem.op_count, 0),
        is_gone_(bytes_.size(), 0),
        twin_of_(bytes_.size(), -1),
        mutators_(bytes_.size(), 0),
        reader_begin_(bytes_.size() + 1, 0) {
    for (const Op& op : problem.graph->ops) {
      // Names are not copied.
      ops_.push_back({.time_ns = op.time_ns,
                      .workspace_bytes = op.workspace_bytes,
                      .again_ns = op.again_ns,
                      .state_bytes = op.state_bytes,
                      .launches = op.launches,
                      .phase = op.phase,
                      .kind = op.kind,
                      .replay_point = op.replay_point,
                      .reads = op.reads,
                      .writes = op.writes,
                      .mutates = op.mutates});
      for (const StorageId s : op.mutates) ++mutators_[s];
    }
    for (const OpId held : rules_.held_until) {
      if (held != kNoOp) releases_[held] = 1;
    }
  }

  // Applies the rules in rounds until nothing changes, then writes the result.
  void Run() {
    for (int round = 0; round < kMostReductions; ++round) {
      changed_ = false;
      ListReaders();
      for (OpId o = 0; o < Count(); ++o) {
        if (gone_into_[o] == kNoOp) LookAtOutputs(o);
      }
      if (changed_) DropStorages();
      if (options_.sinks) FoldForward();
      LookBack();
      reduction_.changed_ |= changed_;
      if (!changed_) break;
    }
    if (reduction_.changed_) Write();
  }

 private:
  OpId Count() const { return static_cast<OpId>(ops_.size()); }
  // Returns the op into which an op has been merged, or the op itself.
  OpId Where(OpId o) const {
    while (o != kNoOp && gone_into_[o] != kNoOp) o = gone_into_[o];
    return o;
  }
  OpId HeldUntil(StorageId s) const { return Where(rules_.held_until[s]); }
  // Returns whether the storage has one version, is not pinned, and is still
  // there.
  bool IsSimple(StorageId s) const {
    return is_gone_[s] == 0 && mutators_[s] == 0 &&
           !problem_.graph->storages[s].pinned;
  }

  // -- storages ---------------------------------------------------------------

  // Lists the readers of every storage, as the graph is now.
  void ListReaders() {
    std::fill(reader_begin_.begin(), reader_begin_.end(), 0);
    for (OpId o = 0; o < Count(); ++o) {
      if (gone_into_[o] != kNoOp) continue;
      for (const StorageId s : ops_[o].reads) ++reader_begin_[s + 1];
    }
    for (size_t s = 0; s < bytes_.size(); ++s) {
      reader_begin_[s + 1] += reader_begin_[s];
    }
    readers_.resize(reader_begin_.back());
    std::vector<int32_t> next(reader_begin_.begin(), reader_begin_.end() - 1);
    for (OpId o = 0; o < Count(); ++o) {
      if (gone_into_[o] != kNoOp) continue;
      for (const StorageId s : ops_[o].reads) readers_[next[s]++] = o;
    }
  }
  std::span<const OpId> Readers(StorageId s) const {
    return {readers_.data() + reader_begin_[s],
            readers_.data() + reader_begin_[s + 1]};
  }

  // Applies the rules `empty`, `unread` and `twins` to the outputs of an op.
  void LookAtOutputs(OpId o) {
    const std::vector<StorageId>& writes = ops_[o].writes;
    for (const StorageId s : writes) {
      if (!IsSimple(s)) continue;
      if (options_.empty && bytes_[s] == 0) {
        TakeOut(s);
      } else if (options_.unread && Readers(s).empty() &&
                 problem_.required[s] == 0 &&
                 (HeldUntil(s) == kNoOp || HeldUntil(s) == o)) {
        ops_[o].workspace_bytes += bytes_[s];
        TakeOut(s);
      }
    }
    if (!options_.twins || writes.size() > kMostTwins) return;
    for (size_t i = 0; i < writes.size(); ++i) {
      for (size_t j = i + 1; j < writes.size(); ++j) {
        if (!AreTwins(writes[i], writes[j])) continue;
        bytes_[writes[i]] += bytes_[writes[j]];
        twin_of_[writes[j]] = writes[i];
        TakeOut(writes[j]);
      }
    }
  }
  // Returns whether two outputs of one op satisfy the rule `twins`.
  bool AreTwins(StorageId a, StorageId b) const {
    const auto first = Readers(a);
    const auto second = Readers(b);
    return IsSimple(a) && IsSimple(b) && HeldUntil(a) == HeldUntil(b) &&
           problem_.required[a] == problem_.required[b] &&
           std::equal(first.begin(), first.end(), second.begin(), second.end());
  }
  // Marks a storage as removed.
  void TakeOut(StorageId s) {
    is_gone_[s] = 1;
    changed_ = true;
  }
  // Removes the marked storages from the ops' lists.
  void DropStorages() {
    const auto is_gone = [&](StorageId s) { return is_gone_[s] != 0; };
    for (OpId o = 0; o < Count(); ++o) {
      if (gone_into_[o] != kNoOp) continue;
      std::erase_if(ops_[o].reads, is_gone);
      std::erase_if(ops_[o].writes, is_gone);
    }
  }

  // -- ops --------------------------------------------------------------------

  // Returns whether re-runs may precede an op; kNoOp stands for the end.
  bool MayTrigger(OpId o) const {
    return rules_.may_trigger[o == kNoOp ? Count() : o] != 0;
  }
  // Returns whether an op has no outputs.
  bool IsSink(OpId o) const {
    return gone_into_[o] == kNoOp && ops_[o].writes.empty() &&
           ops_[o].mutates.empty();
  }

  // Returns the ops of the original that an op stands for, in order.
  std::vector<Piece> PiecesOf(OpId o) const {
    std::vector<Piece> pieces(ahead_[o].rbegin(), ahead_[o].rend());
    pieces.push_back({.op = o});
    pieces.insert(pieces.end(), behind_[o].begin(), behind_[o].end());
    return pieces;
  }

  // Merges sinks that run just before the op that follows them.
  void FoldForward() {
    OpId next = kNoOp;
    for (OpId o = Count(); o-- > 0;) {
      if (gone_into_[o] != kNoOp) continue;
      if (next != kNoOp && IsSink(o) && releases_[o] == 0 &&
          MayTrigger(o) == MayTrigger(next) && FitsBefore(o, next)) {
        const std::vector<Piece> pieces = PiecesOf(o);
        for (size_t i = pieces.size(); i-- > 0;) {
          ahead_[next].push_back({.op = pieces[i].op, .first_only = true});
        }
        Goes(o, next);
        folded_ns_ += ops_[o].time_ns;
        continue;
      }
      next = o;
    }
  }
  // Returns whether a sink can run just before `next` without raising memory.
  bool FitsBefore(OpId o, OpId next) const {
    int64_t room = ops_[next].workspace_bytes;
    for (const StorageId s : ops_[next].writes) room += bytes_[s];
    return ops_[o].workspace_bytes <= room &&
           IsSubset(ops_[o].reads, ops_[next].reads, {});
  }

  // Merges sinks that run just after the op that precedes them, and ops that
  // mutate in place what it leaves.
  void LookBack() {
    OpId before = kNoOp;
    for (OpId o = 0; o < Count(); ++o) {
      if (gone_into_[o] != kNoOp) continue;
      if (before != kNoOp && (!MayTrigger(o) || MayTrigger(NextOf(o))) &&
          ops_[o].workspace_bytes <= ops_[before].workspace_bytes) {
        if (options_.sinks && IsSink(o) &&
            IsSubset(ops_[o].reads, ops_[before].reads, ops_[before].writes)) {
          folded_ns_ += ops_[o].time_ns;
          Append(o, before, /*first_only=*/true);
          continue;
        }
        if (options_.in_place && IsInPlace(before, o)) {
          Join(before, o);
          Append(o, before, /*first_only=*/false);
          continue;
        }
      }
      before = o;
    }
  }
  // Returns the next remaining op, or kNoOp.
  OpId NextOf(OpId o) const {
    do ++o;
    while (o < Count() && gone_into_[o] != kNoOp);
    return o < Count() ? o : kNoOp;
  }

  // Returns whether two neighbours satisfy the rule `in place`.
  bool IsInPlace(OpId before, OpId o) const {
    const Op& first = ops_[before];
    const Op& second = ops_[o];
    if (first.writes.size() != 1 || !first.mutates.empty() ||
        second.mutates != first.writes || !second.writes.empty() ||
        first.phase != second.phase || HasState(second) ||
        problem_.graph->storages[first.writes[0]].pinned) {
      return false;
    }
    const bool plain = second.kind == OpKind::kPure ||
                       second.kind == OpKind::kView ||
                       second.kind == first.kind;
    const bool neither =
        rules_.may_rerun[before] == 0 && rules_.may_rerun[o] == 0;
    const OpId held = HeldUntil(first.writes[0]);
    return (plain || neither) &&
           (held == kNoOp || held == before || held == o) &&
           rules_.may_rerun[before] == rules_.may_rerun[o] &&
           IsSubset(second.reads, first.reads, first.writes);
  }
  // Adds the costs of an in-place op to the op before it.
  void Join(OpId before, OpId o) {
    Op& op = ops_[before];
    if (op.kind == OpKind::kView) op.kind = OpKind::kPure;
    op.again_ns = RerunNs(op) + RerunNs(ops_[o]);
    op.time_ns += ops_[o].time_ns;
    op.launches += ops_[o].launches;
    --mutators_[op.writes[0]];
  }

  // Makes an op run right after `before`: always, or only with its first run.
  void Append(OpId o, OpId before, bool first_only) {
    for (Piece piece : PiecesOf(o)) {
      piece.first_only |= first_only;
      behind_[before].push_back(piece);
    }
    releases_[before] |= releases_[o];
    Goes(o, before);
  }
  // Marks an op as merged into another.
  void Goes(OpId o, OpId into) {
    gone_into_[o] = into;
    changed_ = true;
  }

  // -- the smaller graph ------------------------------------------------------

  // Writes the reduced graph, with new numbers, and the way back.
  void Write() {
    const StepGraph& graph = *problem_.graph;
    StepGraph& reduced = reduction_.graph_;
    reduced.name = graph.name;
    reduced.static_bytes = graph.static_bytes;
    std::vector<OpId> op_number(ops_.size(), kNoOp);
    OpId count = 0;
    for (OpId o = 0; o < Count(); ++o) {
      if (gone_into_[o] == kNoOp) op_number[o] = count++;
    }
    std::vector<StorageId> number(bytes_.size(), -1);
    for (StorageId s = 0; s < static_cast<StorageId>(bytes_.size()); ++s) {
      if (is_gone_[s] != 0) continue;
      number[s] = reduced.storage_count();
      reduction_.storage_.push_back(s);
      reduced.storages.push_back(graph.storages[s]);
      Storage& storage = reduced.storages.back();
      storage.bytes = bytes_[s];
      if (storage.release_op != kNoOp) {
        storage.release_op = op_number[Where(storage.release_op)];
      }
    }
    for (StorageId s = 0; s < static_cast<StorageId>(bytes_.size()); ++s) {
      if (twin_of_[s] < 0 || number[twin_of_[s]] < 0) continue;
      reduced.storages[number[twin_of_[s]]].saved_for_backward |=
          graph.storages[s].saved_for_backward;
    }
    for (const StorageId s : graph.required) {
      if (number[s] >= 0) reduced.required.push_back(number[s]);
    }
    reduction_.piece_begin_.push_back(0);
    for (OpId o = 0; o < Count(); ++o) {
      if (gone_into_[o] != kNoOp) continue;
      Op& op = ops_[o];
      for (std::vector<StorageId>* list :
           {&op.reads, &op.writes, &op.mutates}) {
        for (StorageId& s : *list) s = number[s];
      }
      op.name = graph.ops[o].name;
      op.module = graph.ops[o].module;
      reduced.ops.push_back(std::move(op));
      for (const Piece& piece : PiecesOf(o)) {
        reduction_.pieces_.push_back(piece);
      }
      EndOp();
    }
    if (folded_ns_ > 0) {
      reduced.ops.push_back({.time_ns = folded_ns_,
                             .phase = Phase::kOptimizer,
                             .kind = OpKind::kOnce,
                             .name = "folded"});
      EndOp();
    }
    reduction_.twin_of_ = std::move(twin_of_);
  }
  // Ends the list of pieces of an op.
  void EndOp() {
    reduction_.piece_begin_.push_back(
        static_cast<int32_t>(reduction_.pieces_.size()));
  }

  const Problem& problem_;
  const Rules& rules_;
  const ReduceOptions& options_;
  Reduction& reduction_;

  // By op.
  std::vector<Op> ops_;
  std::vector<int64_t> bytes_;  // by storage
  // What runs before an op, the nearest first, and after it.
  std::vector<std::vector<Piece>> ahead_, behind_;
  std::vector<OpId> gone_into_;
  std::vector<uint8_t> releases_;  // the program holds something until this op
  // By storage.
  std::vector<uint8_t> is_gone_;
  std::vector<StorageId> twin_of_;
  std::vector<int32_t> mutators_;
  std::vector<int32_t> reader_begin_;  // CSR
  std::vector<OpId> readers_;

  int64_t folded_ns_ = 0;
  bool changed_ = false;
};

Reduction::Reduction(const Problem& problem, const ReduceOptions& options)
    : original_(problem) {
  Reducer(problem, options, *this).Run();
}

}  // namespace reprise::planner
