// SPDX-License-Identifier: Apache-2.0
#include "planner/unwind.h"

#include <algorithm>
#include <limits>
#include <span>

namespace reprise::planner {
namespace {

// Levels of values: in the set; of a reduction under way; of a reduction inside
// it, where the budget is in the way of that. Nested ones are looked at only
// where no other leads anywhere.
constexpr uint8_t kInSet = 1;
constexpr uint8_t kReduced = 2;
constexpr uint8_t kMostLevel = 4;
// Execs of one reduction.
constexpr size_t kMostExecs = 1000;

class Walk {
 public:
  Walk(const Problem& problem, const UnwindOptions& options, Effort& effort)
      : problem_(problem),
        options_(options),
        effort_(effort),
        mark_(MarkOf(problem, options)),
        most_execs_(static_cast<size_t>(problem.op_count) *
                    static_cast<size_t>(options.most_execs_per_op)),
        last_tick_(options.most_ticks > 0
                       ? effort.ticks() + options.most_ticks
                       : std::numeric_limits<int64_t>::max()),
        maker_(problem.bytes.size(), kNoOp),
        may_remake_(problem.bytes.size(), 0),
        readers_(problem.bytes.size()),
        level_(problem.bytes.size(), 0),
        place_(problem.bytes.size(), 0),
        reruns_(problem.op_count, 0),
        live_(problem.static_bytes) {
    int64_t sum = 0;
    for (OpId o = 0; o < problem.op_count; ++o) {
      sum += problem.rules.rerun_ns[o];
      for (const ValueId v : problem.versions.Need(o)) {
        const StorageId s = problem.versions.storage[v];
        reads_.push_back(s);
        readers_[s].push_back(o);
      }
    }
    for (StorageId s = 0; s < static_cast<StorageId>(maker_.size()); ++s) {
      const ValueId v = problem.versions.first_value[s];
      maker_[s] = problem.versions.maker[v];
      may_remake_[s] = problem.rules.may_rerun[maker_[s]] != 0 &&
                       problem.rules.may_remake[v] != 0;
    }
    // Cheap ops are not free: every exec costs memory traffic and a place in
    // the schedule.
    exec_ns_ = 1 + sum / (8 * std::max(1, problem.op_count));
  }

  std::vector<OpId> Run() {
    for (const ValueId v : problem_.end_need) {
      Set(problem_.versions.storage[v], kInSet);
    }
    for (at_ = problem_.op_count - 1; at_ >= 0; --at_) {
      if (!MakeRoom()) return {};
      Undo(at_, kInSet, nullptr);
      changes_.clear();
    }
    std::reverse(execs_.begin(), execs_.end());
    return execs_;
  }

 private:
  static int64_t MarkOf(const Problem& problem, const UnwindOptions& options) {
    const __int128 dynamic = options.budget_bytes - problem.static_bytes;
    return problem.static_bytes +
           static_cast<int64_t>(dynamic * options.mark_percent / 100);
  }

  // A point of the walk to go back to.
  struct Point {
    size_t change = 0, exec = 0;
  };
  struct Change {
    StorageId storage;
    uint8_t before;
  };
  struct Reduction {
    double worth = 0;
    Point end;
  };

  Point Now() const { return {changes_.size(), execs_.size()}; }

  void Set(StorageId s, uint8_t level) {
    changes_.push_back({s, level_[s]});
    Put(s, level);
  }
  void Put(StorageId s, uint8_t level) {
    if (level_[s] == 0 && level != 0) Enter(s);
    if (level_[s] != 0 && level == 0) Leave(s);
    level_[s] = level;
  }
  void Enter(StorageId s) {
    live_ += problem_.bytes[s];
    place_[s] = static_cast<int32_t>(set_.size());
    set_.push_back(s);
  }
  void Leave(StorageId s) {
    live_ -= problem_.bytes[s];
    set_[place_[s]] = set_.back();
    place_[set_.back()] = place_[s];
    set_.pop_back();
  }
  // In the order of the storages, whatever led here.
  std::vector<StorageId> Members() const {
    std::vector<StorageId> members = set_;
    std::sort(members.begin(), members.end());
    return members;
  }
  void GoBack(const Point& point) {
    while (changes_.size() > point.change) {
      Put(changes_.back().storage, changes_.back().before);
      changes_.pop_back();
    }
    while (execs_.size() > point.exec) {
      --reruns_[execs_.back()];
      execs_.pop_back();
    }
  }

  OpId MakerOf(StorageId s) const { return maker_[s]; }
  std::span<const StorageId> Reads(OpId o) const {
    return {reads_.data() + problem_.versions.need_begin[o],
            reads_.data() + problem_.versions.need_begin[o + 1]};
  }
  bool MayRerun(StorageId s) const {
    const OpId o = MakerOf(s);
    const int most = problem_.capabilities.max_runs;
    return o < at_ && may_remake_[s] != 0 &&
           (most == 0 || reruns_[o] + 1 < most);
  }
  // Memory while an op runs whose outputs are in the set afterwards, or dead.
  int64_t BytesOf(OpId o) {
    int64_t bytes = live_ + problem_.workspace[o];
    for (const StorageId s : problem_.Writes(o)) {
      if (level_[s] == 0) bytes += problem_.bytes[s];
    }
    const auto reads = Reads(o);
    for (const StorageId s : reads) {
      if (level_[s] == 0) bytes += problem_.bytes[s];
    }
    ticks_ += 1 + static_cast<int64_t>(reads.size());
    return bytes;
  }
  // The exec before the set. What enters is appended to `entered`.
  void Undo(OpId o, uint8_t level, std::vector<StorageId>* entered) {
    for (const StorageId s : problem_.Writes(o)) {
      if (level_[s] != 0) Set(s, 0);
    }
    for (const StorageId s : Reads(o)) {
      if (level_[s] != 0) continue;
      Set(s, level);
      if (entered != nullptr) entered->push_back(s);
    }
    execs_.push_back(o);
    ++reruns_[o];
  }

  bool Spend() {
    effort_.Spend(ticks_);
    ticks_ = 0;
    return !effort_.Over() && effort_.ticks() < last_tick_;
  }

  // Re-runs until the first run of at_ fits.
  bool MakeRoom() {
    for (;;) {
      if (!Spend() || execs_.size() > most_execs_) return false;
      const int64_t bytes = BytesOf(at_);
      if (bytes <= mark_) return true;
      if (problem_.rules.may_trigger[at_] != 0) {
        if (ReduceBest() || StepAside()) continue;
      }
      return bytes <= options_.budget_bytes;
    }
  }

  // What one byte of a value is worth where it leaves the set.
  double WeightOf(StorageId s) const {
    if (!options_.by_distance) return 1;
    const std::vector<OpId>& readers = readers_[s];
    const auto next = std::lower_bound(readers.begin(), readers.end(), at_);
    const OpId op = next == readers.begin() ? MakerOf(s) : *(next - 1);
    return static_cast<double>(std::max(1, at_ - op));
  }

  // One value leaves, or is replaced by smaller ones. False where none can.
  bool ReduceBest() {
    for (most_level_ = kReduced; most_level_ <= kMostLevel; ++most_level_) {
      if (ReduceBestNow()) return true;
    }
    return false;
  }
  bool ReduceBestNow() {
    double most = 0;
    StorageId best = -1;
    for (const StorageId s : Members()) {
      if (!MayRerun(s)) continue;
      const Point begin = Now();
      const Reduction reduction = Reduce(s, kReduced);
      GoBack(begin);
      const double worth = reduction.worth * WeightOf(s);
      if (worth > most) {
        most = worth;
        best = s;
      }
      if (!Spend()) return false;
    }
    if (best < 0) return false;
    const size_t begin = changes_.size();
    Reduce(best, kReduced);
    Settle(begin, kReduced, kInSet, nullptr);
    return true;
  }

  // What changed since and is at a level goes to the level below.
  void Settle(size_t begin, uint8_t from, uint8_t to,
              std::vector<StorageId>* settled) {
    for (size_t i = begin, end = changes_.size(); i < end; ++i) {
      const StorageId s = changes_[i].storage;
      if (level_[s] != from) continue;
      Set(s, to);
      if (settled != nullptr) settled->push_back(s);
    }
  }

  // Re-runs what makes a value, latest first, with the rest of the set held;
  // ends where most bytes per time are gained, or where it began.
  Reduction Reduce(StorageId value, uint8_t level) {
    const int64_t before = live_;
    const size_t begin = execs_.size();
    Reduction best{.worth = 0, .end = Now()};
    int64_t time_ns = 0;
    size_t timed = begin;
    const auto judge = [&] {
      for (; timed < execs_.size(); ++timed) {
        time_ns += exec_ns_ + problem_.rules.rerun_ns[execs_[timed]];
      }
      if (live_ >= before) return;
      const double worth =
          static_cast<double>(before - live_) / static_cast<double>(time_ns);
      if (worth > best.worth) best = {.worth = worth, .end = Now()};
    };
    // By maker, so that the latest is last; may list what has left.
    std::vector<StorageId> open = {value};
    std::vector<StorageId> entered;
    const auto earlier = [this](StorageId a, StorageId b) {
      return MakerOf(a) < MakerOf(b);
    };
    const auto add = [&] {
      for (const StorageId s : entered) {
        open.insert(std::upper_bound(open.begin(), open.end(), s, earlier), s);
      }
      entered.clear();
    };
    Set(value, level);
    while (!open.empty() && execs_.size() - begin < kMostExecs) {
      const StorageId last = open.back();
      if (level_[last] != level || !MayRerun(last)) {
        open.pop_back();  // has left, or has to stay
        continue;
      }
      if (BytesOf(MakerOf(last)) <= options_.budget_bytes) {
        open.pop_back();
        Undo(MakerOf(last), level, &entered);
      } else if (level >= most_level_ || !ReduceIn(open, level, entered)) {
        break;
      }
      add();
      judge();
    }
    GoBack(best.end);
    return best;
  }

  // Of the values of a reduction under way, but for the last, the best one is
  // reduced itself.
  bool ReduceIn(const std::vector<StorageId>& open, uint8_t level,
                std::vector<StorageId>& entered) {
    double most = 0;
    StorageId best = -1;
    for (const StorageId s : open) {
      if (s == open.back() || level_[s] != level || !MayRerun(s)) continue;
      const Point begin = Now();
      const Reduction reduction = Reduce(s, level + 1);
      GoBack(begin);
      if (reduction.worth > most) {
        most = reduction.worth;
        best = s;
      }
    }
    if (best < 0) return false;
    const size_t begin = changes_.size();
    Reduce(best, level + 1);
    Settle(begin, level + 1, level, &entered);
    return true;
  }

  // One re-run that makes the set larger, and all reductions after it.
  bool StepAside() {
    int64_t least = std::numeric_limits<int64_t>::max();
    StorageId best = -1;
    for (const StorageId s : Members()) {
      if (!MayRerun(s) || BytesOf(MakerOf(s)) > options_.budget_bytes) continue;
      const Point begin = Now();
      StepAsideBy(s);
      if (live_ < least) {
        least = live_;
        best = s;
      }
      GoBack(begin);
      if (!Spend()) return false;
    }
    if (best < 0) return false;
    StepAsideBy(best);
    return true;
  }
  void StepAsideBy(StorageId s) {
    Undo(MakerOf(s), kInSet, nullptr);
    while (BytesOf(at_) > mark_ && execs_.size() <= most_execs_ &&
           ReduceBest()) {
    }
  }

  const Problem& problem_;
  const UnwindOptions& options_;
  Effort& effort_;
  const int64_t mark_;
  const size_t most_execs_;
  const int64_t last_tick_;
  int64_t exec_ns_ = 1;

  // By storage, but for reads_, which is parallel to versions.need.
  std::vector<OpId> maker_;
  std::vector<uint8_t> may_remake_;
  std::vector<StorageId> reads_;
  std::vector<std::vector<OpId>> readers_;  // in base order

  OpId at_ = 0;                 // the next first run, from the back
  std::vector<uint8_t> level_;  // by storage; 0: not in the set
  std::vector<StorageId> set_;
  std::vector<int32_t> place_;   // by storage: in set_
  std::vector<int32_t> reruns_;  // by op
  std::vector<OpId> execs_;      // from the back
  std::vector<Change> changes_;  // since the last first run
  int64_t live_;
  uint8_t most_level_ = kReduced;
  int64_t ticks_ = 0;
};

}  // namespace

std::vector<OpId> Unwind(const Problem& problem, const UnwindOptions& options,
                         Effort& effort) {
  return Walk(problem, options, effort).Run();
}

}  // namespace reprise::planner
