// SPDX-License-Identifier: Apache-2.0
//
// A schedule as a list of execs, evaluated incrementally: the state of the
// local search.
//
// First runs are in base order; re-runs may be anywhere between them. A list is
// valid if every exec finds the versions it needs. Nothing else needs to be
// stored: a life ends at its last event before the storage is written again,
// exactly where `WithFrees` puts the free. So the time of a list is a sum, and
// inserting or erasing a re-run affects only the lives of what it makes (one is
// split, or two are joined) and of what it reads (one grows or shrinks):
//
//   x made         x read                x read
//     |==============|=====================|       one life
//     |==============|            |========|       `x` is re-run before the
//                                 x again          second reader
//
// Memory is kept per exec, in blocks of about 64 with a pending sum and the
// maximum of each: adding to a range costs O(block + blocks). Storages keep
// their events (makes, reads) in order. Events whose versions do not match are
// counted as *clashes*, so that a sequence of changes may pass through invalid
// lists. Every change is logged and can be undone.
//
// Insert, Erase: O(arity * (block + blocks + log events)); 100,000 ops have
// about 1,600 blocks. Memory O(execs + arities). After any changes and undos,
// the figures equal those of the evaluator for the same execs
// (ExecListTest.AgreesWithTheEvaluatorAfterAnyChanges).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/model/problem.h"

namespace reprise::planner {

class ExecList {
 public:
  // The first run of op o is node o, `End()` is the end of the step, and
  // re-runs have higher numbers.
  using Node = int32_t;

  // A make or read of a storage: the version it must find and the version it
  // leaves (kNoValue: none, or the same).
  struct Event {
    Node node = -1;
    ValueId need = kNoValue;
    ValueId make = kNoValue;
    bool starts = false;  // begins a life
    ValueId After() const { return make != kNoValue ? make : need; }
  };

  explicit ExecList(const Problem& problem);

  // Replaces the list. First runs must be complete and in base order.
  void Assign(std::span<const OpId> execs);
  std::vector<OpId> Execs() const;

  // Returns whether `op` may run again just before `next`, judged by its kind,
  // its number of runs, and what re-runs may precede; versions are not checked.
  bool MayInsert(OpId op, Node next) const;
  // Inserts a re-run; returns its node. MayInsert must be true.
  Node InsertBefore(Node next, OpId op);
  // Removes a re-run.
  void Erase(Node rerun);

  // Changes since the last Commit. UndoTo reverts all changes after the mark.
  size_t Mark() const { return log_.size(); }
  void UndoTo(size_t mark);
  void Commit() { log_.clear(); }

  // True if every exec finds the versions it needs.
  bool valid() const { return clashes_ == 0; }
  int64_t time_ns() const { return time_ns_; }
  int64_t PeakBytes() const;
  // Returns the memory above a limit, summed over all execs.
  double BytesAbove(int64_t limit) const;
  // Lists the execs in order, and the memory while each runs.
  void Profile(std::vector<Node>& nodes, std::vector<int64_t>& bytes) const;
  // Returns the first exec that reaches the peak.
  Node PeakNode() const;
  // Returns memory while an exec runs, including static memory.
  int64_t BytesAt(Node node) const;
  // Returns the largest memory strictly between two nodes; 0 if nothing is
  // between them.
  int64_t MostBetween(Node after, Node before) const;

  Node End() const { return problem_.op_count; }
  // Returns whether a node is a re-run, not a first run or the end.
  bool IsRerun(Node node) const { return node > problem_.op_count; }
  // False for an erased re-run whose number has not been reused.
  bool Has(Node node) const { return nodes_[node].block >= 0; }
  OpId OpOf(Node node) const { return nodes_[node].op; }
  // Returns the base op, or the end, to which the burst with this exec leads.
  OpId LeadsTo(Node node) const { return nodes_[node].leads_to; }
  const std::vector<Node>& reruns() const { return reruns_; }
  bool IsBefore(Node a, Node b) const { return Key(a) < Key(b); }
  // Returns the node `places` further on, clamped to the first node and the
  // end.
  Node Move(Node node, int64_t places) const;

  // Returns the events of a storage in order. Each seeded op has an additional
  // storage for the generator's state, numbered after the graph's.
  const std::vector<Event>& Events(StorageId s) const { return events_[s]; }
  // Returns the index of the first event that is not before `node`.
  int32_t FirstEventFrom(StorageId s, Node node) const;
  // Returns whether every output of a re-run is made again, or the step ends,
  // before any op reads it.
  bool IsUnread(Node rerun) const;

  int64_t ticks() const { return ticks_; }

 private:
  static constexpr int32_t kBlock = 128;
  struct Block {
    int32_t count = 0;
    Node nodes[kBlock];
    int64_t bytes[kBlock];  // without the block's pending sum
  };
  struct NodeInfo {
    OpId op = kNoOp;
    int32_t block = -1;
    int32_t offset = 0;
    OpId leads_to = kNoOp;
    int32_t rerun_slot = -1;   // place in reruns_
    int64_t own_bytes = 0;     // workspace, and outputs allocated again
    int64_t ending_bytes = 0;  // of lives that end here
  };
  struct Touch {
    StorageId storage;
    ValueId need, make;
    bool writes;
  };
  struct Change {
    bool inserted;
    OpId op;
    Node node, next;
  };

  // Returns a key that orders nodes by their position in the list.
  int64_t Key(Node node) const {
    const NodeInfo& info = nodes_[node];
    return (static_cast<int64_t>(rank_[info.block]) << 32) + info.offset;
  }
  Node Previous(Node node) const;
  // Returns the event that an op's touch of a storage causes at a node.
  Event EventOf(const Touch& touch, Node node) const;
  // Returns whether an event does not find the version that it needs.
  bool IsBad(const std::vector<Event>& events, size_t index) const;
  // Returns whether a storage is the state of a generator.
  bool IsState(StorageId s) const { return s >= state_begin_; }

  // Lists which storages every op reads and makes.
  void AddTouches();
  // Distributes the nodes over half-full blocks.
  void Fill(std::span<const Node> order);
  void AccountAll();
  // Insert and erase without writing the log.
  Node DoInsert(Node next, OpId op);
  void DoErase(Node node);
  // Add or remove an event, and adjust lives, memory and clashes.
  void AddEvent(const Touch& touch, Node node);
  void RemoveEvent(const Touch& touch, Node node);
  // Adds `bytes` to the memory of the nodes strictly between two.
  void AddBetween(Node after, Node before, int64_t bytes);
  // Adds `bytes` to the memory of one node.
  void AddAt(Node node, int64_t bytes);
  // Adds `bytes` to the nodes [begin, end) of one block.
  void AddInBlock(int32_t rank, int32_t begin, int32_t end, int64_t bytes);
  // Recomputes the maximum of one block.
  void FindMost(int32_t rank);
  // Splits a full block into two halves.
  void Split(int32_t rank);

  const Problem& problem_;
  const StorageId state_begin_;
  std::vector<int64_t> bytes_;        // by storage, states included
  std::vector<int32_t> touch_begin_;  // CSR by op and the end
  std::vector<Touch> touches_;
  std::vector<Event> holds_;  // by storage: release by the program

  std::vector<NodeInfo> nodes_;
  std::vector<Node> unused_;
  std::vector<Node> reruns_;
  std::vector<int32_t> runs_;  // by op
  std::vector<std::vector<Event>> events_;
  std::vector<Block> blocks_;
  std::vector<int32_t> order_;           // by rank: block
  std::vector<int32_t> rank_;            // by block
  std::vector<int64_t> pending_, most_;  // by rank; most_ includes pending_
  std::vector<Change> log_;
  int64_t clashes_ = 0;
  int64_t time_ns_ = 0;
  mutable int64_t ticks_ = 0;
};

}  // namespace reprise::planner
