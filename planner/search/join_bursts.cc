// SPDX-License-Identifier: Apache-2.0
#include "planner/search/join_bursts.h"

#include <algorithm>
#include <utility>

#include "planner/model/exec_list.h"
#include "planner/model/list_moves.h"

namespace reprise::planner {
namespace {

using Node = ExecList::Node;
using Event = ExecList::Event;

// Checkpoints discarded without a faster schedule before they are reverted.
constexpr int kMostIdleJoins = 6;
// Re-runs of which the deletion does not fit before no more are tried.
constexpr int kMostMisfits = 100;
// Re-runs that one checkpoint may take.
constexpr size_t kMostMade = 4000;
// Re-runs worth less than this part of the price are not deleted here.
constexpr double kLeastWorth = 0.7;

class Joining {
 public:
  Joining(const Problem& problem, int64_t budget_bytes, OpId at,
          double ns_per_byte, int64_t most_ticks, Effort& effort)
      : problem_(problem),
        budget_bytes_(budget_bytes),
        at_(at),
        ns_per_byte_(ns_per_byte),
        effort_(effort),
        last_tick_(effort.ticks() + most_ticks),
        list_(problem) {}

  std::vector<OpId> Run(const std::vector<OpId>& execs) {
    list_.Assign(execs);
    if (!Fits()) return execs;
    while (Pass() && !Over()) {
    }
    return list_.Execs();
  }

 private:
  struct Rerun {
    double worth = 0;  // of its deletion, in ns per byte
    Node node = -1;
    OpId op = kNoOp;
  };

  bool Fits() const {
    return list_.valid() && list_.PeakBytes() <= budget_bytes_;
  }
  bool Over() {
    effort_.Spend(list_.ticks() - spent_);
    spent_ = list_.ticks();
    return effort_.Over() || effort_.ticks() > last_tick_;
  }
  void Delete(Node rerun) {
    DeleteWithFeeders(problem_, list_, rerun, doomed_);
  }

  // Tries all checkpoints once. Returns whether the schedule became faster.
  bool Pass() {
    const int64_t begin_ns = list_.time_ns();
    RankReruns();
    int64_t best_ns = begin_ns;
    size_t best = list_.Mark();
    int idle = 0;
    for (const StorageId s : Checkpoints()) {
      if (Over()) break;
      if (!Discard(s)) continue;
      DeleteWhatFits();
      if (list_.time_ns() < best_ns) {
        best_ns = list_.time_ns();
        best = list_.Mark();
        idle = 0;
      } else if (++idle == kMostIdleJoins) {
        list_.UndoTo(best);
        idle = 0;
      }
    }
    list_.UndoTo(best);
    list_.Commit();
    return best_ns < begin_ns;
  }

  // Returns the re-run that reads the storage next after the window, if it is
  // present there; otherwise kNone.
  static constexpr Node kNone = -1;
  Node ReaderOf(StorageId s) const {
    const std::vector<Event>& events = list_.Events(s);
    const int32_t next = list_.FirstEventFrom(s, at_);
    if (next == 0 || next == static_cast<int32_t>(events.size()) ||
        events[next].starts || !list_.IsRerun(events[next].node)) {
      return kNone;
    }
    return events[next].node;
  }

  // Returns the storages that are present at the window for a re-run; those that
  // are read last come first.
  std::vector<StorageId> Checkpoints() const {
    std::vector<std::pair<Node, StorageId>> found;
    for (StorageId s = 0; s < static_cast<StorageId>(problem_.bytes.size());
         ++s) {
      if (problem_.bytes[s] <= 0) continue;
      const Node reader = ReaderOf(s);
      if (reader != kNone) found.emplace_back(reader, s);
    }
    std::sort(found.begin(), found.end(), [&](const auto& a, const auto& b) {
      if (a.first == b.first) return a.second < b.second;
      return list_.IsBefore(b.first, a.first);
    });
    std::vector<StorageId> storages;
    for (const auto& [reader, s] : found) storages.push_back(s);
    return storages;
  }

  // Makes a checkpoint again before its reader instead of saving it, if that is
  // possible and costs no more than it is worth.
  bool Discard(StorageId s) {
    const Node reader = ReaderOf(s);
    if (reader == kNone) return false;
    const std::vector<Event>& events = list_.Events(s);
    const ValueId v = events[list_.FirstEventFrom(s, at_) - 1].After();
    const size_t before = list_.Mark();
    const int64_t time_ns = list_.time_ns();
    const int64_t bytes = list_.BytesAt(at_);
    made_.clear();
    if (v != kNoValue && Remake(v, reader)) {
      DeleteNext();
      const auto cost = static_cast<double>(list_.time_ns() - time_ns);
      const auto gain = static_cast<double>(bytes - list_.BytesAt(at_));
      if (cost <= gain * ns_per_byte_ && Fits()) return true;
    }
    list_.UndoTo(before);
    return false;
  }

  // Inserts the maker of a value before a node, and what that needs and is not
  // present at the window anyway.
  bool Remake(ValueId v, Node next) {
    const OpId op = problem_.versions.maker[v];
    next = PlaceFor(problem_, list_, op, next);
    if (next == kNoOp || problem_.rules.may_remake[v] == 0 ||
        made_.size() == kMostMade || !list_.MayInsert(op, next)) {
      return false;
    }
    const Node node = list_.InsertBefore(next, op);
    made_.emplace_back(node, op);
    return RemakeInputs(
        problem_, list_, node,
        [this](ValueId, Node since) { return list_.IsBefore(since, at_); },
        [this](ValueId u, Node before) { return Remake(u, before); });
  }

  // Deletes the next re-run of every op that Remake inserted.
  void DeleteNext() {
    for (const auto& [node, op] : made_) {
      if (!list_.Has(node) || list_.OpOf(node) != op) continue;
      Node first = kNone;
      for (const ValueId v : problem_.versions.Make(op)) {
        const StorageId s = problem_.versions.storage[v];
        const std::vector<Event>& events = list_.Events(s);
        const auto from = events.begin() + list_.FirstEventFrom(s, node) + 1;
        const auto again = std::find_if(
            from, events.end(),
            [v = v](const Event& event) { return event.make == v; });
        if (again != events.end() && list_.IsRerun(again->node) &&
            (first == kNone || list_.IsBefore(again->node, first))) {
          first = again->node;
        }
      }
      if (first != kNone) Delete(first);
    }
  }

  // Lists the re-runs worth deleting, the best first. One that needs no bytes at
  // the window lacks room elsewhere, and comes last.
  void RankReruns() {
    reruns_.clear();
    for (const Node node : list_.reruns()) {
      reruns_.push_back({.node = node, .op = list_.OpOf(node)});
    }
    const double least = ns_per_byte_ * kLeastWorth;
    for (Rerun& rerun : reruns_) {
      const int64_t time_ns = list_.time_ns();
      const int64_t bytes = list_.BytesAt(at_);
      Delete(rerun.node);
      if (list_.valid()) {
        const auto needs = static_cast<double>(list_.BytesAt(at_) - bytes);
        const auto saves = static_cast<double>(time_ns - list_.time_ns());
        rerun.worth = needs > 0 ? saves / needs : least;
      }
      list_.UndoTo(0);
    }
    std::erase_if(reruns_,
                  [&](const Rerun& rerun) { return rerun.worth < least; });
    std::sort(reruns_.begin(), reruns_.end(),
              [](const Rerun& a, const Rerun& b) {
                return a.worth != b.worth ? a.worth > b.worth : a.node < b.node;
              });
  }

  void DeleteWhatFits() {
    int misfits = 0;
    for (const Rerun& rerun : reruns_) {
      if (misfits > kMostMisfits) return;
      if (!list_.Has(rerun.node) || list_.OpOf(rerun.node) != rerun.op)
        continue;
      const size_t before = list_.Mark();
      Delete(rerun.node);
      if (Fits()) continue;
      list_.UndoTo(before);
      ++misfits;
    }
  }

  const Problem& problem_;
  const int64_t budget_bytes_;
  const OpId at_;
  const double ns_per_byte_;
  Effort& effort_;
  const int64_t last_tick_;
  ExecList list_;
  int64_t spent_ = 0;
  std::vector<Rerun> reruns_;
  std::vector<std::pair<Node, OpId>> made_;  // by the last Remake
  std::vector<Node> doomed_;                 // scratch
};

}  // namespace

std::vector<OpId> JoinBursts(const Problem& problem, int64_t budget_bytes,
                             OpId at, double ns_per_byte,
                             const std::vector<OpId>& execs, int64_t most_ticks,
                             Effort& effort) {
  return Joining(problem, budget_bytes, at, ns_per_byte, most_ticks, effort)
      .Run(execs);
}

}  // namespace reprise::planner
