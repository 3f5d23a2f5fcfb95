// SPDX-License-Identifier: Apache-2.0
#include "planner/local_search.h"

#include <algorithm>

#include "planner/exec_list.h"

namespace reprise::planner {
namespace {

using Node = ExecList::Node;
using Event = ExecList::Event;

// Re-runs that one move may put in.
constexpr int kMostInserted = 24;
// Changes since the best list after which that list is written down.
constexpr size_t kMostLogged = size_t{1} << 20;

class Annealing {
 public:
  Annealing(const Problem& problem, const LocalSearchOptions& options,
            std::vector<OpId>& execs, Archive& archive, Effort& effort)
      : problem_(problem),
        options_(options),
        execs_(execs),
        archive_(archive),
        effort_(effort),
        random_(options.seed),
        list_(problem) {
    score_ = {.budget_bytes = options.budget_bytes,
              .base_time_ns = problem.base.time_ns,
              .base_peak_bytes = problem.base.peak_bytes};
    for (StorageId s = 0; s < static_cast<StorageId>(problem.bytes.size());
         ++s) {
      if (problem.bytes[s] > 0 &&
          problem.rules.may_remake[problem.versions.first_value[s]] != 0) {
        storages_.push_back(s);
      }
    }
  }

  int64_t Run() {
    list_.Assign(execs_);
    if (!list_.valid() || storages_.empty()) return 0;
    current_ = ScoreNow();
    TakeAsBest();
    peak_ = list_.PeakNode();
    int64_t spent = 0, steps = 0;
    int64_t before = list_.ticks();
    while (spent < options_.ticks && !effort_.Over()) {
      Step(Temperature(spent));
      ++steps;
      // At least one tick each, so that a step without a change ends too.
      const int64_t ticks = list_.ticks() - before + 4;
      before = list_.ticks();
      spent += ticks;
      effort_.Spend(ticks);
      if (Fits() && best_ <= options_.good_enough_ns) break;
      // Above the budget for a quarter of the run: time is worth less.
      if (!Fits() && spent > raise_at_) RaiseFactor();
      if (list_.Mark() > kMostLogged) WriteDownBest();
    }
    if (!best_execs_.empty()) {
      list_.Assign(best_execs_);
    } else {
      list_.UndoTo(0);
    }
    execs_ = list_.Execs();
    archive_.Add(list_.PeakBytes(), list_.time_ns(), execs_, options_.name);
    return steps;
  }

 private:
  bool Fits() const { return best_peak_ <= options_.budget_bytes; }

  int64_t ScoreNow() {
    last_peak_ = list_.PeakBytes();
    const int64_t score = score_.Of({.valid = list_.valid(),
                                     .time_ns = list_.time_ns(),
                                     .peak_bytes = last_peak_});
    return score;
  }

  // Geometric: the exponent falls linearly in ticks; 8 steps per power of two.
  int64_t Temperature(int64_t spent) const {
    const int64_t steps = 8 * (options_.cold - options_.hot);
    const int64_t step = std::min<int64_t>(
        steps, static_cast<int64_t>(static_cast<__int128>(spent) * steps /
                                    std::max<int64_t>(1, options_.ticks)));
    // 2^(-i/8) * 2^16
    static constexpr int64_t kEighths[8] = {65536, 60097, 55109, 50535,
                                            46341, 42495, 38968, 35734};
    const __int128 base =
        static_cast<__int128>(problem_.base.time_ns) * kEighths[step % 8];
    return static_cast<int64_t>(base >> (16 + options_.hot + step / 8));
  }

  void RaiseFactor() {
    raise_at_ += options_.ticks / 8;
    if (score_.factor > 1'000'000) return;
    score_.factor *= 4;
    current_ = ScoreNow();
    TakeAsBest();
  }

  void TakeAsBest() {
    best_ = current_;
    best_peak_ = last_peak_;
    best_execs_.clear();
    list_.Commit();
  }

  // The log since the best list is long: keep that list itself.
  void WriteDownBest() {
    const std::vector<OpId> now = list_.Execs();
    if (best_execs_.empty()) {
      list_.UndoTo(0);
      best_execs_ = list_.Execs();
      list_.Assign(now);
      peak_ = list_.PeakNode();
    }
    list_.Commit();
  }

  void Step(int64_t temperature) {
    const size_t mark = list_.Mark();
    inserted_ = 0;
    bool possible = Propose();
    if (possible && random_.Percent(25)) possible = Propose();
    if (list_.Mark() == mark) return;
    const __int128 rise =
        static_cast<__int128>(temperature) * random_.Exponential16() >> 16;
    const __int128 limit = rise + current_;
    const int64_t most = limit >= Score::kWorst ? Score::kWorst - 1
                                                : static_cast<int64_t>(limit);
    if (!possible || !list_.valid() || list_.time_ns() > most) {
      list_.UndoTo(mark);
      return;
    }
    const int64_t score = ScoreNow();
    if (score > most) {
      list_.UndoTo(mark);
      return;
    }
    current_ = score;
    peak_ = list_.PeakNode();
    if (score < best_) TakeAsBest();
  }

  // False: what was begun cannot be finished.
  bool Propose() {
    const int kind = random_.Below(100);
    const std::vector<Node>& reruns = list_.reruns();
    if (kind < 35 || reruns.empty()) return DropAt(peak_);
    const Node rerun = reruns[random_.Below(reruns.size())];
    if (kind < 60) {
      Delete(rerun);
      return true;
    }
    if (kind < 85) return Shift(rerun);
    if (kind < 92) return DropAt(rerun);
    return DropAt(random_.Below(problem_.op_count + 1));
  }

  // Re-makes a value that is alive at a node, but not touched by it, before
  // its next reader.
  bool DropAt(Node node) {
    if (!list_.Has(node)) return true;  // gone with the step's first move
    for (int tries = 0; tries < 16; ++tries) {
      const StorageId s = storages_[random_.Below(storages_.size())];
      const std::vector<Event>& events = list_.Events(s);
      const int32_t next = list_.FirstEventFrom(s, node);
      if (next == 0 || next >= static_cast<int32_t>(events.size()) ||
          events[next].starts || events[next].node == node) {
        continue;
      }
      const ValueId v = events[next - 1].After();
      if (problem_.rules.may_remake[v] == 0) continue;
      return Remake(v, events[next].node);
    }
    return true;
  }

  // Puts in the maker of a value before a node, and what that needs.
  bool Remake(ValueId v, Node next) {
    const OpId op = problem_.versions.maker[v];
    if (++inserted_ > kMostInserted || problem_.rules.may_remake[v] == 0 ||
        !list_.MayInsert(op, next)) {
      return false;
    }
    const Node node = list_.InsertBefore(next, op);
    for (const ValueId u : problem_.versions.Need(op)) {
      const StorageId s = problem_.versions.storage[u];
      const std::vector<Event>& events = list_.Events(s);
      const int32_t at = list_.FirstEventFrom(s, node);
      const Event previous = events[at - 1];
      if (previous.After() != u) {
        if (!Remake(u, node)) return false;
        continue;
      }
      const bool extended = at + 1 == static_cast<int32_t>(events.size()) ||
                            events[at + 1].starts;
      if (!extended || problem_.rules.may_remake[u] == 0) continue;
      if (!list_.MayInsert(problem_.versions.maker[u], node)) continue;
      const bool over =
          list_.MostBetween(previous.node, node) > options_.budget_bytes;
      if (!random_.Percent(over ? 75 : 8)) continue;
      if (!Remake(u, node)) return false;
    }
    DeleteUnreadBefore(node);
    return true;
  }

  // A re-run whose readers are now served by `node` was for nothing.
  void DeleteUnreadBefore(Node node) {
    for (const StorageId s : problem_.Writes(list_.OpOf(node))) {
      const int32_t at = list_.FirstEventFrom(s, node);
      const Event& previous = list_.Events(s)[at - 1];
      if (list_.IsRerun(previous.node) && previous.starts &&
          list_.IsUnread(previous.node)) {
        Delete(previous.node);
        return;
      }
    }
  }

  // Takes a re-run out, and those that were there for it alone.
  void Delete(Node rerun) {
    doomed_.assign(1, rerun);
    while (!doomed_.empty()) {
      const Node node = doomed_.back();
      doomed_.pop_back();
      // One may have gone with another.
      if (!list_.Has(node) || (node != rerun && !list_.IsUnread(node))) {
        continue;
      }
      for (const ValueId u : problem_.versions.Need(list_.OpOf(node))) {
        const StorageId s = problem_.versions.storage[u];
        const int32_t at = list_.FirstEventFrom(s, node);
        const Event& previous = list_.Events(s)[at - 1];
        if (previous.make != kNoValue && list_.IsRerun(previous.node)) {
          doomed_.push_back(previous.node);
        }
      }
      list_.Erase(node);
    }
  }

  bool Shift(Node rerun) {
    const OpId op = list_.OpOf(rerun);
    Node target = list_.End();
    if (random_.Percent(40)) {
      for (const StorageId s : problem_.Writes(op)) {
        const std::vector<Event>& events = list_.Events(s);
        const size_t next = list_.FirstEventFrom(s, rerun) + 1;
        if (next < events.size() && !events[next].starts &&
            list_.IsBefore(events[next].node, target)) {
          target = events[next].node;
        }
      }
    } else {
      int64_t places = 1 + random_.Below(int64_t{2} << random_.Below(7));
      if (random_.Percent(50)) places = -places;
      target = list_.Move(rerun, places);
    }
    if (target == rerun || list_.Move(rerun, 1) == target) return true;
    list_.Erase(rerun);
    if (!list_.MayInsert(op, target)) return false;
    list_.InsertBefore(target, op);
    return true;
  }

  const Problem& problem_;
  const LocalSearchOptions& options_;
  std::vector<OpId>& execs_;
  Archive& archive_;
  Effort& effort_;
  Random random_;
  Score score_;
  ExecList list_;

  std::vector<StorageId> storages_;  // that may be made again
  Node peak_ = 0;
  int inserted_ = 0;  // by the current step
  std::vector<Node> doomed_;
  int64_t last_peak_ = 0;
  int64_t current_ = Score::kWorst;
  int64_t best_ = Score::kWorst;
  int64_t best_peak_ = Score::kWorst;
  std::vector<OpId> best_execs_;  // empty: the list at the log's beginning
  int64_t raise_at_ = options_.ticks / 4;
};

}  // namespace

int64_t LocalSearch(const Problem& problem, const LocalSearchOptions& options,
                    std::vector<OpId>& execs, Archive& archive,
                    Effort& effort) {
  return Annealing(problem, options, execs, archive, effort).Run();
}

}  // namespace reprise::planner
