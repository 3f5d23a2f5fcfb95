// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/cover.h"

#include <algorithm>
#include <unordered_map>

#include "planner/model/exec_list.h"
#include "planner/model/list_moves.h"

namespace reprise::planner {
namespace {

using Node = ExecList::Node;
using Event = ExecList::Event;

// Re-runs that one change may insert.
constexpr int kMostInsertedPerChange = 40;
// By how much the price falls from pass to pass, and how far at most.
constexpr double kStep = 1.25;
constexpr double kFarthest = 1e-9;
// It gives up after this many passes in a row of which each left more than this
// part of the excess.
constexpr int kMostIdle = 16;
constexpr double kProgress = 0.95;

class Covering {
 public:
  Covering(const Problem& problem, int64_t budget_bytes, int64_t most_ticks,
           Effort& effort)
      : problem_(problem),
        budget_bytes_(budget_bytes),
        effort_(effort),
        last_tick_(effort.ticks() + most_ticks),
        list_(problem) {}

  std::vector<OpId> Run(const std::vector<OpId>& execs,
                        std::vector<OpId>* nearest) {
    list_.Assign(execs);
    if (!list_.valid()) return {};
    excess_ = list_.BytesAbove(budget_bytes_);
    if (excess_ > 0) {
      CountAbove();
      for (const Gap& gap : Gaps()) price_ = std::max(price_, gap.worth);
    }
    const double least = price_ * kFarthest;
    int idle = 0;
    for (; excess_ > 0 && price_ > least && idle < kMostIdle && !Over();
         price_ /= kStep) {
      const double before = excess_;
      Pass();
      idle = excess_ < before * kProgress ? 0 : idle + 1;
    }
    if (excess_ > 0) {
      if (nearest != nullptr) *nearest = list_.Execs();
      return {};
    }
    price_ = 0;
    Thin();
    return list_.Execs();
  }

 private:
  // A value that is present from one event to the next.
  struct Gap {
    double worth = 0;  // at most, by bytes, execs and the time of its maker
    double most_gain = 0;
    StorageId storage = -1;
    Node from = -1, to = -1;

    bool operator<(const Gap& other) const {
      if (worth != other.worth) return worth > other.worth;
      return from != other.from ? from < other.from : storage < other.storage;
    }
    int64_t key() const { return (static_cast<int64_t>(storage) << 32) + to; }
  };

  bool Over() const { return effort_.Over() || effort_.ticks() > last_tick_; }
  void Spend() {
    effort_.Spend(list_.ticks() - spent_);
    spent_ = list_.ticks();
  }

  // Counts the execs above the budget, for OverBetween.
  void CountAbove() {
    list_.Profile(nodes_, bytes_);
    place_.assign(place_.size(), -1);
    above_before_.assign(nodes_.size() + 1, 0);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      SetPlace(nodes_[i], static_cast<int32_t>(i));
      above_before_[i + 1] =
          above_before_[i] + (bytes_[i] > budget_bytes_ ? 1 : 0);
    }
    effort_.Spend(static_cast<int64_t>(nodes_.size()));
  }
  void SetPlace(Node node, int32_t place) {
    if (node >= static_cast<Node>(place_.size())) place_.resize(node + 1, -1);
    place_[node] = place;
  }
  // Returns how many execs between two nodes were above the budget when they
  // were counted.
  int32_t AboveBetween(Node from, Node to) const {
    const int32_t begin = place_[from], end = place_[to];
    if (begin < 0 || end <= begin) return 0;
    return above_before_[end] - above_before_[begin + 1];
  }

  // Returns the gaps that span execs above the budget.
  std::vector<Gap> Gaps() {
    std::vector<Gap> gaps;
    const auto storages = static_cast<StorageId>(problem_.bytes.size());
    for (StorageId s = 0; s < storages; ++s) {
      if (problem_.bytes[s] <= 0) continue;
      const std::vector<Event>& events = list_.Events(s);
      for (size_t i = 1; i < events.size(); ++i) {
        if (events[i].starts) continue;
        const ValueId v = events[i - 1].After();
        if (v == kNoValue || problem_.rules.may_remake[v] == 0) continue;
        const int32_t above = AboveBetween(events[i - 1].node, events[i].node);
        if (above == 0) continue;
        const OpId maker = problem_.versions.maker[v];
        const double most = static_cast<double>(problem_.bytes[s]) * above;
        const auto cost =
            static_cast<double>(problem_.rules.rerun_ns[maker]) + 1;
        gaps.push_back({.worth = most / cost,
                        .most_gain = most,
                        .storage = s,
                        .from = events[i - 1].node,
                        .to = events[i].node});
      }
      effort_.Spend(static_cast<int64_t>(events.size()) / 4);
    }
    return gaps;
  }

  // Tries all gaps and all re-runs at the current price.
  void Pass() {
    CountAbove();
    std::vector<Gap> gaps = Gaps();
    double most = 0;
    for (Gap& gap : gaps) {
      const auto tried = worth_.find(gap.key());
      if (tried != worth_.end()) gap.worth = std::min(gap.worth, tried->second);
      most = std::max(most, gap.worth);
    }
    // Nothing is worth the price, so lower it at once.
    price_ = std::min(price_, most / kStep);
    std::erase_if(gaps, [&](const Gap& gap) { return gap.worth < price_; });
    std::sort(gaps.begin(), gaps.end());
    for (const Gap& gap : gaps) {
      if (excess_ <= 0 || Over()) return;
      Discard(gap);
    }
    Thin();
  }

  // Tries to recompute the value after its gap.
  void Discard(const Gap& gap) {
    if (!list_.Has(gap.from) || !list_.Has(gap.to)) return;
    const std::vector<Event>& events = list_.Events(gap.storage);
    const int32_t next = list_.FirstEventFrom(gap.storage, gap.to);
    if (next <= 0 || next >= static_cast<int32_t>(events.size()) ||
        events[next].node != gap.to || events[next].starts) {
      return;
    }
    const ValueId v = events[next - 1].After();
    if (v == kNoValue || problem_.rules.may_remake[v] == 0) return;
    inserted_ = 0;
    begin_ns_ = list_.time_ns();
    most_ns_ = gap.most_gain / price_;
    double& worth = worth_[gap.key()];
    worth = 0;
    const bool possible = Remake(v, gap.to);
    const auto cost = static_cast<double>(list_.time_ns() - begin_ns_);
    if (cost > most_ns_) worth = gap.most_gain / cost;
    Keep(possible, gap.key());
  }

  // Deletes re-runs that are not worth their time, costly ones first.
  void Thin() {
    std::vector<Node> reruns = list_.reruns();
    std::sort(reruns.begin(), reruns.end(), [&](Node a, Node b) {
      const int64_t a_ns = problem_.rules.rerun_ns[list_.OpOf(a)];
      const int64_t b_ns = problem_.rules.rerun_ns[list_.OpOf(b)];
      return a_ns != b_ns ? a_ns > b_ns : a < b;
    });
    for (const Node rerun : reruns) {
      if (Over()) return;
      if (!list_.Has(rerun)) continue;
      begin_ns_ = list_.time_ns();
      DeleteWithFeeders(problem_, list_, rerun, doomed_);
      Keep(true, kNoKey);
    }
  }

  // Keeps the changes since the last call if they are worth their price,
  // otherwise reverts them. Notes what they were worth.
  void Keep(bool possible, int64_t key) {
    Spend();
    if (possible && list_.valid()) {
      const double excess = list_.BytesAbove(budget_bytes_);
      const double gain = excess_ - excess;
      const auto cost = static_cast<double>(list_.time_ns() - begin_ns_);
      if (key != kNoKey && cost > 0) worth_[key] = gain / cost;
      if (gain >= price_ * cost && (gain > 0 || cost < 0)) {
        excess_ = excess;
        list_.Commit();
        return;
      }
    }
    list_.UndoTo(0);
  }

  // Inserts the maker of a value before a node, and what that needs. Returns
  // false if that is impossible, or costs more than it is worth.
  bool Remake(ValueId v, Node next) {
    const OpId op = problem_.versions.maker[v];
    next = PlaceFor(problem_, list_, op, next);
    if (next == kNoOp || ++inserted_ > kMostInsertedPerChange ||
        problem_.rules.may_remake[v] == 0 || !list_.MayInsert(op, next)) {
      return false;
    }
    const Node node = list_.InsertBefore(next, op);
    SetPlace(node, place_[next]);
    if (static_cast<double>(list_.time_ns() - begin_ns_) > most_ns_) {
      return false;
    }
    return RemakeInputs(
        problem_, list_, node,
        [&](ValueId u, Node since) {
          const double stays = static_cast<double>(problem_.BytesOf(u)) *
                               AboveBetween(since, node);
          if (stays <= 0) return list_.MostBetween(since, node) > budget_bytes_;
          const OpId maker = problem_.versions.maker[u];
          return stays >
                 price_ * static_cast<double>(problem_.rules.rerun_ns[maker]);
        },
        [this](ValueId u, Node before) { return Remake(u, before); });
  }

  static constexpr int64_t kNoKey = -1;

  const Problem& problem_;
  const int64_t budget_bytes_;
  Effort& effort_;
  const int64_t last_tick_;
  ExecList list_;
  int64_t spent_ = 0;
  double excess_ = 0;
  double price_ = 0;
  // Of the change that is being tried.
  int inserted_ = 0;
  int64_t begin_ns_ = 0;
  double most_ns_ = 0;
  std::unordered_map<int64_t, double> worth_;  // by gap: of its last try
  // The list when it was last counted.
  std::vector<Node> nodes_;
  std::vector<int64_t> bytes_;
  std::vector<int32_t> place_;         // by node: its place, or of the next one
  std::vector<int32_t> above_before_;  // by place
  std::vector<Node> doomed_;           // scratch
};

}  // namespace

std::vector<OpId> Cover(const Problem& problem, int64_t budget_bytes,
                        const std::vector<OpId>& execs, int64_t most_ticks,
                        Effort& effort, std::vector<OpId>* nearest) {
  return Covering(problem, budget_bytes, most_ticks, effort)
      .Run(execs, nearest);
}

}  // namespace reprise::planner
