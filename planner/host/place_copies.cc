// SPDX-License-Identifier: Apache-2.0
#include "planner/host/place_copies.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

namespace reprise::planner {
namespace {

using Kind = Entry::Kind;

// Positions are those of execs; a place p is right before exec p.
struct Gap {
  StorageId storage = 0;
  int32_t made = 0;  // the exec that made this version of this life
  int32_t from = 0;  // the first place without a use ...
  int32_t to = 0;    // ... and the exec of the next one; the end, if required
  bool is_short = false;
  bool is_last = false;  // chosen where others do not suffice
  int32_t sent = -1;     // the place where it leaves; -1: not chosen
  int32_t fetch = -1;    // the place where it comes back
};

// Placer: the state of one placement.
class Placer {
 public:
  Placer(const Problem& problem, const std::vector<OpId>& execs,
         int64_t budget_bytes, bool whole_last)
      : problem_(problem),
        graph_(*problem.graph),
        budget_(budget_bytes),
        whole_last_(whole_last),
        length_(static_cast<int32_t>(execs.size())),
        schedule_(WithFrees(graph_, execs, problem.capabilities.free_policy)) {}

  Schedule Place() {
    std::vector<MemoryPoint> profile;
    const auto evaluation =
        Evaluate(graph_, schedule_, problem_.capabilities, &profile);
    if (!evaluation.ok() || evaluation->peak_bytes <= budget_) return schedule_;
    for (const MemoryPoint& point : profile) bytes_.push_back(point.bytes);
    FindGaps(profile, evaluation->time_ns);
    Choose();
    SendLate();
    FetchEarly();
    return Emit();
  }

 private:
  int64_t BytesOf(const Gap& gap) const { return problem_.bytes[gap.storage]; }

  void FindGaps(const std::vector<MemoryPoint>& profile, int64_t end_ns) {
    const Link& link = problem_.capabilities.link;
    struct Life {
      int32_t used = -1;  // the last use; -1: absent
      int32_t made = 0;
      int32_t held = 0;  // the first place where it may be freed
      bool is_first = true;
    };
    std::vector<Life> lives(problem_.bytes.size());
    std::vector<int32_t> first_run(problem_.op_count, length_);
    int32_t at = 0;
    for (const Entry& entry : schedule_) {
      if (entry.kind != Kind::kExec) continue;
      first_run[entry.id] = std::min(first_run[entry.id], at++);
    }
    std::vector<uint8_t> is_required(problem_.bytes.size(), 0);
    for (const StorageId s : graph_.required) is_required[s] = 1;
    // Such an executor sends what the forward has made, not what it has
    // recomputed, nor what is still to be written.
    const bool in_backward = problem_.capabilities.recompute_in_backward_only;
    std::vector<int32_t> writes_left(problem_.bytes.size(), 0);
    for (const Op& op : graph_.ops) {
      for (const StorageId s : op.mutates) ++writes_left[s];
    }
    const auto add = [&](StorageId s, int32_t to) {
      const Life& life = lives[s];
      Gap gap{.storage = s,
              .made = life.made,
              .from = std::max(life.used + 1, life.held),
              .to = to};
      if (gap.from >= to || BytesOf(gap) == 0) return;
      if (graph_.storages[s].stays) return;
      if (in_backward && (!life.is_first || writes_left[s] > 0)) return;
      const int64_t ns = (to < length_ ? profile[to].start_ns : end_ns) -
                         profile[std::min(gap.from, length_ - 1)].start_ns;
      gap.is_short =
          CopyNs(BytesOf(gap), link.out_bytes_per_s, link.latency_ns) +
              CopyNs(BytesOf(gap), link.in_bytes_per_s, link.latency_ns) >
          ns;
      gap.is_last = whole_last_ && life.made == 0 && is_required[s] != 0;
      gaps_.push_back(gap);
    };
    at = 0;
    for (const Entry& entry : schedule_) {
      if (entry.kind == Kind::kFree) {
        lives[entry.id].used = -1;
        lives[entry.id].is_first = false;
        continue;
      }
      const Op& op = graph_.ops[entry.id];
      for (const StorageId s : op.reads) {
        add(s, at);
        lives[s].used = at;
      }
      for (const StorageId s : op.mutates) {
        lives[s].made = at;
        writes_left[s] -= lives[s].is_first;
      }
      for (const StorageId s : op.writes) {
        Life& life = lives[s];
        life.used = life.made = at;
        const OpId held = problem_.rules.held_until[s];
        if (life.is_first && held != kNoOp) life.held = first_run[held] + 1;
        if (!life.is_first) life.held = 0;
      }
      ++at;
    }
    for (const StorageId s : graph_.required) add(s, length_);
  }

  // Chooses gaps until no exec exceeds the budget, or none is left.
  void Choose() {
    std::stable_sort(
        gaps_.begin(), gaps_.end(),
        [](const Gap& a, const Gap& b) { return a.from < b.from; });
    const int64_t host_bytes = problem_.capabilities.link.host_bytes;
    int64_t all = 0;
    for (const Gap& gap : gaps_) all += BytesOf(gap);
    std::vector<int64_t> host(all > host_bytes ? length_ + 1 : 0, 0);
    // Of chosen gaps, by storage: which version the host has, and until when.
    std::vector<std::pair<int32_t, int32_t>> hosted(problem_.bytes.size(),
                                                    {-1, 0});
    // Takes host memory for a gap; returns whether there is enough.
    const auto takes_host = [&](const Gap& gap) {
      if (host.empty()) return true;
      auto& [made, until] = hosted[gap.storage];
      const auto begin = host.begin() + (made == gap.made ? until : gap.made);
      const auto end = host.begin() + gap.to;
      if (*std::max_element(begin, end) + BytesOf(gap) > host_bytes) {
        return false;
      }
      std::for_each(begin, end, [&](int64_t& bytes) { bytes += BytesOf(gap); });
      made = gap.made;
      until = gap.to;
      return true;
    };
    const auto worse = [this](size_t a, size_t b) {
      return Rank(gaps_[a]) < Rank(gaps_[b]);
    };
    std::priority_queue<size_t, std::vector<size_t>, decltype(worse)> open(
        worse);
    std::vector<int64_t> back(length_ + 1, 0);  // bytes that are here again
    int64_t gone = 0;
    size_t next = 0;
    for (int32_t at = 0; at < length_; ++at) {
      for (; next < gaps_.size() && gaps_[next].from <= at; ++next) {
        open.push(next);
      }
      gone -= back[at];
      while (bytes_[at] - gone > budget_ && !open.empty()) {
        Gap& gap = gaps_[open.top()];
        open.pop();
        if (gap.to <= at || !takes_host(gap)) continue;
        gap.sent = gap.to;
        gone += BytesOf(gap);
        back[gap.to] += BytesOf(gap);
      }
    }
    std::erase_if(gaps_, [](const Gap& gap) { return gap.sent < 0; });
    // In the order of the sends.
    std::stable_sort(
        gaps_.begin(), gaps_.end(),
        [](const Gap& a, const Gap& b) { return a.made < b.made; });
  }

  std::tuple<bool, bool, int32_t, int64_t> Rank(const Gap& gap) const {
    return {!gap.is_short, !gap.is_last, gap.to, BytesOf(gap)};
  }

  void SendLate() {
    std::vector<Gap*> left;
    for (Gap& gap : gaps_) left.push_back(&gap);
    std::vector<int64_t> back(length_ + 1, 0);
    int64_t gone = 0;
    for (int32_t at = 0; at < length_; ++at) {
      gone -= back[at];
      for (size_t i = 0; i < left.size() && bytes_[at] - gone > budget_;) {
        Gap& gap = *left[i];
        if (gap.from > at) {
          ++i;
          continue;
        }
        left.erase(left.begin() + static_cast<int64_t>(i));
        if (gap.to <= at) continue;
        gap.sent = at;
        gone += BytesOf(gap);
        back[gap.to] += BytesOf(gap);
      }
    }
  }

  void FetchEarly() {
    std::vector<Gap*> left;
    for (Gap& gap : gaps_) {
      gap.fetch = gap.sent;
      left.push_back(&gap);
    }
    std::stable_sort(left.begin(), left.end(),
                     [](const Gap* a, const Gap* b) { return a->to > b->to; });
    std::vector<int64_t> here(length_ + 1, 0);  // bytes not gone yet
    int64_t gone = 0;
    for (int32_t at = length_ - 1; at >= 0; --at) {
      gone -= here[at + 1];
      for (size_t i = 0; i < left.size() && bytes_[at] - gone > budget_;) {
        Gap& gap = *left[i];
        if (gap.to <= at) {
          ++i;
          continue;
        }
        left.erase(left.begin() + static_cast<int64_t>(i));
        if (gap.sent > at) continue;
        gap.fetch = at + 1;
        gone += BytesOf(gap);
        here[gap.sent] += BytesOf(gap);
      }
    }
    std::erase_if(gaps_, [](const Gap& gap) { return gap.fetch <= gap.sent; });
  }

  // Returns the schedule with the entries of all gaps.
  Schedule Emit() const {
    struct Placed {
      int32_t at;
      Kind kind;  // in the order of kinds: what leaves comes first
      int32_t order;
      StorageId storage;
    };
    std::vector<Placed> placed;
    std::vector<int32_t> sent_of(problem_.bytes.size(), -1);
    std::vector<const Gap*> gaps;
    for (const Gap& gap : gaps_) gaps.push_back(&gap);
    std::stable_sort(gaps.begin(), gaps.end(), [](const Gap* a, const Gap* b) {
      return a->from < b->from;
    });
    for (const Gap* gap : gaps) {
      const StorageId s = gap->storage;
      // A value that the host has is freed.
      const bool again = sent_of[s] == gap->made;
      if (!again) placed.push_back({gap->made + 1, Kind::kSend, gap->made, s});
      sent_of[s] = gap->made;
      placed.push_back(
          {gap->sent, again ? Kind::kFree : Kind::kSent, gap->made, s});
      placed.push_back({gap->fetch, Kind::kFetch, gap->to, s});
      placed.push_back({gap->to, Kind::kFetched, gap->to, s});
    }
    std::stable_sort(placed.begin(), placed.end(),
                     [](const Placed& a, const Placed& b) {
                       return std::tie(a.at, a.kind, a.order) <
                              std::tie(b.at, b.kind, b.order);
                     });
    Schedule schedule;
    auto next = placed.begin();
    int32_t at = 0;
    const auto put = [&] {
      for (; next != placed.end() && next->at == at; ++next) {
        schedule.push_back({next->kind, next->storage});
      }
    };
    for (const Entry& entry : schedule_) {
      if (entry.kind == Kind::kExec) {
        put();
        ++at;
      }
      schedule.push_back(entry);
    }
    put();
    return schedule;
  }

  const Problem& problem_;
  const StepGraph& graph_;
  const int64_t budget_;
  const bool whole_last_;
  const int32_t length_;
  Schedule schedule_;           // without copies
  std::vector<int64_t> bytes_;  // by exec, without copies
  std::vector<Gap> gaps_;
};

}  // namespace

Schedule PlaceCopies(const Problem& problem, const std::vector<OpId>& execs,
                     int64_t budget_bytes, bool whole_last) {
  return Placer(problem, execs, budget_bytes, whole_last).Place();
}

bool HasWhole(const StepGraph& graph) {
  const auto& first = graph.ops.front().writes;
  return std::any_of(
      graph.required.begin(), graph.required.end(), [&](StorageId s) {
        return !graph.storages[s].stays &&
               std::find(first.begin(), first.end(), s) != first.end();
      });
}

}  // namespace reprise::planner
