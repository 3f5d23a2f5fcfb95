// SPDX-License-Identifier: Apache-2.0
#include "planner/search/local_search.h"

#include <algorithm>

#include "planner/model/exec_list.h"
#include "planner/model/list_moves.h"

namespace reprise::planner {
namespace {

using Node = ExecList::Node;
using Event = ExecList::Event;

// Re-runs that one step may insert, and that one step in twenty may.
constexpr int kMostInserted = 8;
constexpr int kMostInsertedRarely = 50;
// Attempts to find a value alive at a node, per wanted value.
constexpr int kTries = 16;
// Execs visited to find the re-runs of a ruin.
constexpr int kRuinSpan = 200;
// Changes since the best list after which that list is stored.
constexpr size_t kMostLogged = size_t{1} << 20;
// The price of one base peak of bytes above the budget, in base times: at the
// beginning, and from 70 % of the run on. The first is about the value of
// memory, so that the search also passes through lists that do not fit.
constexpr double kFirstPrice = 2.5;
constexpr double kLastPrice = 20;

class ListAnnealing {
 public:
  ListAnnealing(const Problem& problem, const LocalSearchOptions& options,
                std::vector<OpId>& execs, Archive& archive, Effort& effort)
      : problem_(problem),
        options_(options),
        execs_(execs),
        archive_(archive),
        effort_(effort),
        random_(options.seed),
        list_(problem) {
    for (StorageId s = 0; s < static_cast<StorageId>(problem.bytes.size());
         ++s) {
      if (problem.bytes[s] > 0 &&
          problem.rules.may_remake[problem.versions.first_value[s]] != 0) {
        storages_.push_back(s);
      }
    }
  }

  // Anneals until the ticks are spent or the schedule is good enough. Returns
  // the number of steps.
  int64_t Run() {
    list_.Assign(execs_);
    if (!list_.valid() || storages_.empty()) return 0;
    SetPrice(0);
    TakeAsBest();
    peak_ = list_.PeakNode();
    int64_t spent = 0, steps = 0;
    int64_t before = list_.ticks();
    while (spent < options_.ticks && !effort_.Over()) {
      Step(Temperature(spent));
      ++steps;
      // At least one tick each, so that steps without a change also end the
      // loop.
      const int64_t ticks = list_.ticks() - before + 4;
      before = list_.ticks();
      spent += ticks;
      effort_.Spend(ticks);
      if (Fits() && best_ <= options_.good_enough_ns) break;
      SetPrice(spent);
      if (list_.Mark() > kMostLogged) WriteDownBest();
    }
    if (!best_execs_.empty()) {
      list_.Assign(best_execs_);
    } else {
      list_.UndoTo(0);
    }
    execs_ = list_.Execs();
    archive_.Add(list_.PeakBytes(), list_.time_ns(), execs_, "local-search");
    return steps;
  }

 private:
  bool Fits() const { return best_peak_ <= options_.budget_bytes; }

  // Returns the list's score at the current price, and notes its peak.
  int64_t ScoreNow() {
    last_peak_ = list_.PeakBytes();
    const int64_t over = last_peak_ - options_.budget_bytes;
    if (over <= 0) return list_.time_ns();
    const double score = static_cast<double>(over) * price_ +
                         static_cast<double>(list_.time_ns()) + 1;
    return score < 4e18 ? static_cast<int64_t>(score) : Score::kWorst / 2;
  }
  // Smaller is better: lists that fit are ranked by time, others by peak.
  int64_t WorthNow() const {
    if (last_peak_ <= options_.budget_bytes) return list_.time_ns();
    return Score::kWorst / 2 + last_peak_ / 2;
  }

  // Geometric: the exponent falls linearly in ticks, with 8 steps per power of
  // two.
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

  // The price rises in 64 steps, and ever faster while nothing fits.
  void SetPrice(int64_t spent) {
    const int64_t step =
        static_cast<int64_t>(static_cast<__int128>(64) * spent /
                             std::max<int64_t>(1, options_.ticks));
    if (step == price_step_) return;
    price_step_ = step;
    double factor = kFirstPrice;
    const double ratio = kLastPrice / kFirstPrice;
    // Powers by multiplication, which gives the same bits on every machine.
    static constexpr int kRise = 45;
    const double root = 1.0473;  // ratio^(1/45)
    for (int i = 0; i < std::min<int64_t>(step, kRise); ++i) factor *= root;
    factor = std::min(factor, kFirstPrice * ratio);
    if (!Fits()) {
      for (int64_t i = 48; i < step; ++i) factor *= 2;
    }
    price_ =
        factor *
        static_cast<double>(std::max<int64_t>(1, problem_.base.time_ns)) /
        static_cast<double>(std::max<int64_t>(1, problem_.base.peak_bytes));
    current_ = ScoreNow();
  }

  // Notes the current list as the best so far.
  void TakeAsBest() {
    best_ = WorthNow();
    best_peak_ = last_peak_;
    best_execs_.clear();
    list_.Commit();
  }

  // The log since the best list has become long: store that list itself.
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

  // Proposes a change and accepts it by the Metropolis rule.
  void Step(int64_t temperature) {
    const size_t mark = list_.Mark();
    inserted_ = 0;
    most_inserted_ = random_.Percent(5) ? kMostInsertedRarely : kMostInserted;
    merges_ = random_.Percent(50);
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
    if (WorthNow() < best_) TakeAsBest();
  }

  // Returns false if a change that was begun cannot be completed.
  bool Propose() {
    const int kind = random_.Below(100);
    const std::vector<Node>& reruns = list_.reruns();
    if (kind < 35 || reruns.empty()) return DropAt(peak_);
    const Node rerun = reruns[random_.Below(reruns.size())];
    if (kind < 60) {
      int drops = 1 + random_.Below(3);
      if (random_.Percent(15)) {
        drops += Ruin(rerun);
      } else {
        Delete(rerun);
      }
      return random_.Percent(30) || Eject(drops);
    }
    if (kind < 85) return Shift(rerun);
    if (kind < 92) return DropAt(rerun);
    return DropAt(random_.Below(problem_.op_count + 1));
  }

  // Deletes several re-runs that are close together.
  int Ruin(Node first) {
    const int count = 1 + random_.Below(6);
    doomed_near_.clear();
    Node node = first;
    for (int i = 0; i < kRuinSpan && node != list_.End(); ++i) {
      if (list_.IsRerun(node)) doomed_near_.push_back(node);
      if (static_cast<int>(doomed_near_.size()) == count) break;
      node = list_.Move(node, 1);
    }
    for (const Node doomed : doomed_near_) {
      if (list_.Has(doomed)) Delete(doomed);
    }
    return count;
  }

  // Discards something else wherever the list does not fit now.
  bool Eject(int drops) {
    while (drops-- > 0 && list_.PeakBytes() > options_.budget_bytes) {
      if (!DropAt(list_.PeakNode())) return false;
    }
    return true;
  }

  // Recomputes a value that is alive at a node but not used by it, before its
  // next reader: a random one, or the cheapest per byte of three.
  bool DropAt(Node node) {
    if (!list_.Has(node)) return true;  // removed by the step's first move
    const Versions& versions = problem_.versions;
    const OpId leads_to = list_.LeadsTo(node);
    int wanted = random_.Percent(50) ? 3 : 1;
    ValueId best = kNoValue;
    Node before = node;
    double least = 0;
    for (int tries = kTries * wanted; tries > 0 && wanted > 0; --tries) {
      const StorageId s = storages_[random_.Below(storages_.size())];
      const std::vector<Event>& events = list_.Events(s);
      // Most are made later or read last before; the search would cost more.
      if (versions.maker[versions.first_value[s]] >= leads_to ||
          list_.LeadsTo(events.back().node) < leads_to) {
        continue;
      }
      const int32_t next = list_.FirstEventFrom(s, node);
      if (next == 0 || next >= static_cast<int32_t>(events.size()) ||
          events[next].starts || events[next].node == node) {
        continue;
      }
      const ValueId v = events[next - 1].After();
      if (problem_.rules.may_remake[v] == 0) continue;
      const double worth =
          static_cast<double>(
              problem_.rules.rerun_ns[problem_.versions.maker[v]]) /
          static_cast<double>(problem_.bytes[s]);
      if (best == kNoValue || worth < least) {
        best = v;
        before = events[next].node;
        least = worth;
      }
      --wanted;
    }
    if (best == kNoValue) return true;
    before = PlaceFor(problem_, list_, problem_.versions.maker[best], before);
    if (before == kNoOp || !list_.IsBefore(node, before)) return true;
    return Remake(best, before);
  }

  // Inserts the maker of a value before a node, and what that needs.
  bool Remake(ValueId v, Node next) {
    const OpId op = problem_.versions.maker[v];
    next = PlaceFor(problem_, list_, op, next);
    if (next == kNoOp || ++inserted_ > most_inserted_ ||
        problem_.rules.may_remake[v] == 0 || !list_.MayInsert(op, next)) {
      return false;
    }
    const Node node = list_.InsertBefore(next, op);
    const bool remade = RemakeInputs(
        problem_, list_, node,
        [&](ValueId, Node since) {
          const bool over =
              list_.MostBetween(since, node) > options_.budget_bytes;
          return random_.Percent(over ? 75 : 8);
        },
        [this](ValueId u, Node before) { return Remake(u, before); });
    if (!remade) return false;
    if (!list_.Has(node) || list_.OpOf(node) != op) return false;
    DeleteUnreadBefore(node);
    if (merges_ && list_.Has(node)) DeleteNextAfter(node);
    return true;
  }

  // Deletes the next re-run of the same op: its readers can use `node` instead.
  // A step that does so throughout moves a whole burst forward.
  void DeleteNextAfter(Node node) {
    constexpr size_t kFar = 4;
    for (const StorageId s : problem_.Writes(list_.OpOf(node))) {
      const std::vector<Event>& events = list_.Events(s);
      const size_t from = list_.FirstEventFrom(s, node) + 1;
      for (size_t i = from; i < std::min(from + kFar, events.size()); ++i) {
        if (!events[i].starts) continue;
        if (list_.IsRerun(events[i].node)) Delete(events[i].node);
        return;
      }
    }
  }

  // Deletes a re-run all of whose readers are now served by `node`.
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

  void Delete(Node rerun) {
    DeleteWithFeeders(problem_, list_, rerun, doomed_);
  }

  // Moves a re-run to just before its first reader, or by a few places. Returns
  // false if it cannot be inserted there.
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
    // What is no replay point, or outside the windows of the op, is shifted to
    // the last place before it.
    const OpId leads_to = list_.LeadsTo(target);
    if (leads_to < problem_.op_count &&
        (!problem_.graph->ops[leads_to].replay_point ||
         !problem_.rules.IsInWindow(op, leads_to))) {
      target = problem_.rules.LastRerun(op, leads_to);
      if (target == kNoOp) return false;
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
  ExecList list_;

  std::vector<StorageId> storages_;  // that may be recomputed
  Node peak_ = 0;
  int inserted_ = 0;  // by the current step
  int most_inserted_ = kMostInserted;
  bool merges_ = false;  // this step deletes what follows what it inserts
  std::vector<Node> doomed_, doomed_near_;
  int64_t last_peak_ = 0;
  int64_t current_ = Score::kWorst;
  int64_t best_ = Score::kWorst;
  int64_t best_peak_ = Score::kWorst;
  std::vector<OpId> best_execs_;  // empty: the list at the beginning of the log
  double price_ = 0;              // per byte
  int64_t price_step_ = -1;
};

}  // namespace

int64_t LocalSearch(const Problem& problem, const LocalSearchOptions& options,
                    std::vector<OpId>& execs, Archive& archive,
                    Effort& effort) {
  return ListAnnealing(problem, options, execs, archive, effort).Run();
}

}  // namespace reprise::planner
