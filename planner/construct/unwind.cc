// SPDX-License-Identifier: Apache-2.0
#include "planner/construct/unwind.h"

#include <algorithm>
#include <limits>
#include <span>

#include "planner/model/random.h"

namespace reprise::planner {
namespace {

// Levels of values: in the set; in a current reduction; in a reduction inside
// that one, if the budget is in its way. Nested levels are tried only if no
// others succeed.
constexpr uint8_t kInSet = 1;
constexpr uint8_t kReduced = 2;
constexpr uint8_t kMostLevel = 4;
// The walk gives up at this many execs per op.
constexpr size_t kMostExecsPerOp = 100;
// Execs of one reduction.
constexpr size_t kMostExecs = 1000;

class Unwinder {
 public:
  Unwinder(const Problem& problem, const UnwindOptions& options, Effort& effort)
      : problem_(problem),
        options_(options),
        effort_(effort),
        mark_(MarkOf(problem, options)),
        most_execs_(static_cast<size_t>(problem.op_count) * kMostExecsPerOp),
        last_tick_(options.most_ticks > 0
                       ? effort.ticks() + options.most_ticks
                       : std::numeric_limits<int64_t>::max()),
        may_rerun_(problem.rules.may_rerun),
        state_(problem.op_count, 0),
        level_(problem.bytes.size(), 0),
        value_(problem.bytes.size(), kNoValue),
        is_held_(problem.bytes.size(), 0),
        place_(problem.bytes.size(), 0),
        stays_(problem.bytes.size(), 0),
        reruns_(problem.op_count, 0),
        live_(problem.static_bytes) {
    int64_t sum = 0;
    for (OpId o = 0; o < problem.op_count; ++o) {
      sum += problem.rules.rerun_ns[o];
      const Op& op = problem.graph->ops[o];
      if (op.kind == OpKind::kSeeded) state_[o] = op.state_bytes;
      for (const ValueId v : problem.versions.Make(o)) {
        const StorageId s = StorageOf(v);
        if (!problem.graph->storages[s].pinned) continue;
        // A pinned life continues where its storage is written again. Of one
        // that is changed in place, the version may then be another.
        if (problem.versions.IsFirst(v) && v == problem.versions.Last(s)) {
          stays_[s] = 1;
        } else {
          may_rerun_[o] = 0;
        }
      }
    }
    // Cheap ops are not free: every exec costs memory traffic and adds to the
    // schedule.
    if (options.seed != 0) {
      // From 1 to 8, evenly in their logarithms.
      Random random(options.seed);
      for (size_t s = 0; s < problem.bytes.size(); ++s) {
        weights_.push_back(1);
        for (int i = random.Below(32); i > 0; --i) weights_.back() *= 1.0671;
      }
    }
    exec_ns_ = 1 + sum / (8 * std::max(1, problem.op_count));
  }

  std::vector<OpId> Run() {
    for (const ValueId v : problem_.end_need) Set(v, kInSet);
    for (at_ = problem_.op_count - 1; at_ >= 0; --at_) {
      do {
        if (!MakeWay() || !MakeRoom()) return {};
      } while (!IsWayClear());
      UndoFirst();
    }
    std::reverse(execs_.begin(), execs_.end());
    return execs_;
  }

 private:
  // Returns the mark in bytes, including static memory.
  static int64_t MarkOf(const Problem& problem, const UnwindOptions& options) {
    const __int128 dynamic = options.budget_bytes - problem.static_bytes;
    return problem.static_bytes +
           static_cast<int64_t>(dynamic * options.mark_percent / 100);
  }

  // A point of the walk to which it can return.
  struct Point {
    size_t change = 0, exec = 0;
  };
  struct Change {
    StorageId storage;
    uint8_t level;  // and value: what it had before
    ValueId value;
  };
  struct Reduction {
    double worth = 0;
    Point end;
  };

  // Returns the current point of the walk.
  Point Now() const { return {changes_.size(), execs_.size()}; }

  StorageId StorageOf(ValueId v) const { return problem_.versions.storage[v]; }
  bool Has(ValueId v) const { return value_[StorageOf(v)] == v; }
  // Returns whether the set holds a value at this level.
  bool IsAt(ValueId v, uint8_t level) const {
    return Has(v) && level_[StorageOf(v)] == level;
  }
  // Puts a value into the set, and logs the change.
  void Set(ValueId v, uint8_t level) {
    const StorageId s = StorageOf(v);
    changes_.push_back({s, level_[s], value_[s]});
    Put(s, v, level);
  }
  // Removes a storage from the set, and logs the change.
  void Drop(StorageId s) {
    changes_.push_back({s, level_[s], value_[s]});
    Put(s, kNoValue, 0);
  }
  // Changes a storage's entry without logging; level 0 removes it.
  void Put(StorageId s, ValueId v, uint8_t level) {
    if (level_[s] == 0 && level != 0) Enter(s);
    if (level_[s] != 0 && level == 0) Leave(s);
    level_[s] = level;
    value_[s] = v;
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
  // In order of value, regardless of how the set was reached.
  std::vector<ValueId> Members() const {
    std::vector<ValueId> members;
    members.reserve(set_.size());
    for (const StorageId s : set_) members.push_back(value_[s]);
    std::sort(members.begin(), members.end());
    return members;
  }
  // Reverts everything since a point.
  void GoBack(const Point& point) {
    while (changes_.size() > point.change) {
      const Change& change = changes_.back();
      Put(change.storage, change.value, change.level);
      changes_.pop_back();
    }
    while (execs_.size() > point.exec) {
      const OpId o = execs_.back();
      if (--reruns_[o] == 0) live_ -= state_[o];
      execs_.pop_back();
    }
  }

  // Returns whether a value is present before the run of its maker, too.
  bool Stays(ValueId v, OpId maker) const {
    return stays_[StorageOf(v)] != 0 && maker != at_;
  }
  OpId MakerOf(ValueId v) const { return problem_.versions.maker[v]; }
  // Returns whether a value's maker may run again before the first run of at_.
  bool MayRerun(ValueId v) const {
    const OpId o = MakerOf(v);
    const int most = problem_.capabilities.max_runs;
    return o < at_ && may_rerun_[o] != 0 && problem_.rules.may_remake[v] != 0 &&
           problem_.rules.IsInWindow(o, at_ + 1) &&
           is_held_[StorageOf(v)] == 0 && (most == 0 || reruns_[o] + 1 < most);
  }
  // Returns memory while an op runs whose outputs are in the set afterwards, or
  // dead.
  int64_t BytesOf(OpId o) {
    int64_t bytes = live_ + problem_.workspace[o];
    if (o != at_ && reruns_[o] == 0) bytes += state_[o];
    for (const StorageId s : problem_.Writes(o)) {
      if (level_[s] == 0) bytes += problem_.bytes[s];
      if (stays_[s] != 0 && o != at_ &&
          problem_.capabilities.duplicate_outputs) {
        bytes += problem_.bytes[s];
      }
    }
    const auto needs = problem_.versions.Need(o);
    for (const ValueId v : needs) {
      if (level_[StorageOf(v)] == 0) bytes += problem_.BytesOf(v);
    }
    ticks_ += 1 + static_cast<int64_t>(needs.size());
    return bytes;
  }
  // Puts a re-run before the set. Appends what enters the set to `entered`.
  void Undo(OpId o, uint8_t level, std::vector<ValueId>* entered) {
    Replace(o, level, entered);
    execs_.push_back(o);
    if (reruns_[o]++ == 0) live_ += state_[o];
  }
  // Replaces an op's outputs in the set by its inputs. What is pinned stays
  // from the op's first run on.
  void Replace(OpId o, uint8_t level, std::vector<ValueId>* entered) {
    for (const ValueId v : problem_.versions.Make(o)) {
      if (Stays(v, o)) {
        if (!Has(v)) Set(v, kInSet);
      } else if (Has(v)) {
        Drop(StorageOf(v));
      }
    }
    for (const ValueId v : problem_.versions.Need(o)) {
      if (level_[StorageOf(v)] != 0) continue;
      Set(v, level);
      if (entered != nullptr) entered->push_back(v);
    }
  }
  // Puts the first run of an op before the set; then its op has no more
  // re-runs. What the program holds until then remains before it.
  void UndoFirst() {
    for (const StorageId s : Released()) {
      if (level_[s] == 0) Set(BaseValue(s), kInSet);
      is_held_[s] = 1;
    }
    Replace(at_, kInSet, nullptr);
    for (const StorageId s : problem_.Writes(at_)) is_held_[s] = 0;
    if (reruns_[at_] > 0) live_ -= state_[at_];
    execs_.push_back(at_);
    changes_.clear();
  }
  // Returns storages whose first life does not end before at_ has run.
  std::span<const StorageId> Released() const {
    return {problem_.released.data() + problem_.released_begin[at_],
            problem_.released.data() + problem_.released_begin[at_ + 1]};
  }
  // Returns what a storage holds just after the first run of at_.
  ValueId BaseValue(StorageId s) const {
    ValueId v = problem_.versions.Last(s);
    while (MakerOf(v) > at_) --v;
    return v;
  }

  // Makes room for this re-run before the set, so that no storage holds two
  // versions: a version in the way is recomputed from an older version or from
  // nothing. Returns false if that is impossible; the state is then undefined.
  bool Clear(OpId o, uint8_t level, std::vector<ValueId>* entered) {
    for (const ValueId v : problem_.versions.Make(o)) {
      if (!ClearFor(v, level, entered)) return false;
    }
    for (const ValueId v : problem_.versions.Need(o)) {
      if (MadeBy(o, value_[StorageOf(v)])) continue;
      if (!ClearFor(v, level, entered)) return false;
    }
    return IsClear(o);
  }
  // Returns whether an op could run before the set without a conflict of
  // versions.
  bool IsClear(OpId o) const {
    for (const ValueId v : problem_.versions.Make(o)) {
      if (!IsClearFor(v)) return false;
      // A value that may not be recomputed would have to be.
      if (Has(v) && o != at_ && !Stays(v, o) && !MayRerun(v)) return false;
    }
    for (const ValueId v : problem_.versions.Need(o)) {
      if (!IsClearFor(v) && !MadeBy(o, value_[StorageOf(v)])) return false;
    }
    return true;
  }
  // Returns whether the set holds this version of its storage, or none.
  bool IsClearFor(ValueId v) const {
    return level_[StorageOf(v)] == 0 || Has(v);
  }
  // Returns whether an op makes a value.
  bool MadeBy(OpId o, ValueId v) const {
    return v != kNoValue && MakerOf(v) == o;
  }
  // Ensures that the set holds this version of its storage, or none.
  bool ClearFor(ValueId v, uint8_t level, std::vector<ValueId>* entered) {
    const StorageId s = StorageOf(v);
    while (!IsClearFor(v)) {
      const ValueId other = value_[s];
      if (!MayRerun(other) || BytesOf(MakerOf(other)) > options_.budget_bytes ||
          !IsClear(MakerOf(other))) {
        return false;
      }
      Undo(MakerOf(other), level, entered);
    }
    return true;
  }
  // Adds the ticks to the effort. Returns false if it is over.
  bool Spend() {
    effort_.Spend(ticks_);
    ticks_ = 0;
    return !effort_.Over() && effort_.ticks() < last_tick_;
  }

  // Adds re-runs until the first run of at_ finds the versions it reads and
  // leaves.
  bool MakeWay() {
    if (IsWayClear()) return true;
    if (problem_.rules.may_trigger[at_ + 1] == 0) return false;
    if (!Clear(at_, kInSet, nullptr)) return false;
    for (const StorageId s : Released()) {
      if (!ClearFor(BaseValue(s), kInSet, nullptr)) return false;
    }
    return true;
  }
  // Returns whether the first run of at_ finds the versions it reads and
  // leaves.
  bool IsWayClear() const {
    const auto released = Released();
    return IsClear(at_) &&
           std::all_of(released.begin(), released.end(),
                       [&](StorageId s) { return IsClearFor(BaseValue(s)); });
  }
  // Returns the bytes that the program holds until at_ has run and that are not
  // present otherwise.
  int64_t HeldBytes() const {
    int64_t bytes = 0;
    for (const StorageId s : Released()) {
      if (level_[s] != 0) continue;
      const auto is_it = [&](ValueId v) { return StorageOf(v) == s; };
      const auto needs = problem_.versions.Need(at_);
      const auto makes = problem_.versions.Make(at_);
      if (std::none_of(needs.begin(), needs.end(), is_it) &&
          std::none_of(makes.begin(), makes.end(), is_it)) {
        bytes += problem_.bytes[s];
      }
    }
    return bytes;
  }

  // Adds re-runs until the first run of at_ fits.
  bool MakeRoom() {
    for (;;) {
      if (!Spend() || execs_.size() > most_execs_) return false;
      const int64_t bytes = BytesOf(at_) + HeldBytes();
      if (bytes <= mark_) return true;
      if (problem_.rules.may_trigger[at_ + 1] != 0) {
        if (ReduceBest() || StepAside()) continue;
      }
      return bytes <= options_.budget_bytes;
    }
  }

  // Returns the weight of one byte of a value when choosing what leaves the
  // set.
  double WeightOf(ValueId v) const {
    const double weight =
        options_.seed == 0 ? 1 : weights_[static_cast<size_t>(StorageOf(v))];
    if (!options_.by_distance) return weight;
    const auto readers = problem_.Uses(v);
    const auto next = std::lower_bound(readers.begin(), readers.end(), at_);
    const OpId op = next == readers.begin() ? MakerOf(v) : *(next - 1);
    return weight * static_cast<double>(std::max(1, at_ - op));
  }

  // Removes one value, or replaces it by smaller ones. Returns false if
  // impossible.
  bool ReduceBest() {
    for (most_level_ = kReduced; most_level_ <= kMostLevel; ++most_level_) {
      if (ReduceBestNow()) return true;
    }
    return false;
  }
  // Reduces the value of highest worth; reductions nest up to most_level_.
  bool ReduceBestNow() {
    double most = 0;
    ValueId best = kNoValue;
    for (const ValueId v : Members()) {
      if (!MayRerun(v)) continue;
      const Point begin = Now();
      const Reduction reduction = Reduce(v, kReduced);
      GoBack(begin);
      const double worth = reduction.worth * WeightOf(v);
      if (worth > most) {
        most = worth;
        best = v;
      }
      if (!Spend()) return false;
    }
    if (best == kNoValue) return false;
    const size_t begin = changes_.size();
    Reduce(best, kReduced);
    Settle(begin, kReduced, kInSet, nullptr);
    return true;
  }

  // Lowers the level of whatever has changed since `begin` and is at level
  // `from`.
  void Settle(size_t begin, uint8_t from, uint8_t to,
              std::vector<ValueId>* settled) {
    for (size_t i = begin, end = changes_.size(); i < end; ++i) {
      const StorageId s = changes_[i].storage;
      if (level_[s] != from) continue;
      Set(value_[s], to);
      if (settled != nullptr) settled->push_back(value_[s]);
    }
  }

  // Re-runs the makers of a value, latest first, with the rest of the set held.
  // Stops where the most bytes per time are gained, or returns to its
  // beginning.
  Reduction Reduce(ValueId value, uint8_t level) {
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
    // Ordered by maker, so that the latest is last; may list values that have
    // left.
    std::vector<ValueId> open = {value};
    std::vector<ValueId> entered;
    const auto earlier = [this](ValueId a, ValueId b) {
      return MakerOf(a) < MakerOf(b);
    };
    const auto add = [&] {
      for (const ValueId v : entered) {
        open.insert(std::upper_bound(open.begin(), open.end(), v, earlier), v);
      }
      entered.clear();
    };
    Set(value, level);
    while (!open.empty() && execs_.size() - begin < kMostExecs) {
      const ValueId last = open.back();
      if (!IsAt(last, level) || !MayRerun(last)) {
        open.pop_back();  // has left, or must stay
        continue;
      }
      if (!IsClear(MakerOf(last))) {
        const Point point = Now();
        if (!Clear(MakerOf(last), level, &entered)) {
          GoBack(point);
          entered.clear();
          open.pop_back();
          continue;
        }
        add();
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

  // Reduces the best value of a current reduction, other than its last.
  bool ReduceIn(const std::vector<ValueId>& open, uint8_t level,
                std::vector<ValueId>& entered) {
    double most = 0;
    ValueId best = kNoValue;
    for (const ValueId v : open) {
      if (v == open.back() || !IsAt(v, level) || !MayRerun(v)) continue;
      const Point begin = Now();
      const Reduction reduction = Reduce(v, level + 1);
      GoBack(begin);
      if (reduction.worth > most) {
        most = reduction.worth;
        best = v;
      }
    }
    if (best == kNoValue) return false;
    const size_t begin = changes_.size();
    Reduce(best, level + 1);
    Settle(begin, level + 1, level, &entered);
    return true;
  }

  // Makes one re-run that enlarges the set, and then all possible reductions.
  bool StepAside() {
    int64_t least = std::numeric_limits<int64_t>::max();
    ValueId best = kNoValue;
    for (const ValueId v : Members()) {
      if (!MayRerun(v) || !IsClear(MakerOf(v)) ||
          BytesOf(MakerOf(v)) > options_.budget_bytes) {
        continue;
      }
      const Point begin = Now();
      StepAsideBy(v);
      if (live_ < least) {
        least = live_;
        best = v;
      }
      GoBack(begin);
      if (!Spend()) return false;
    }
    if (best == kNoValue) return false;
    StepAsideBy(best);
    return true;
  }
  // Re-runs a value's maker and then reduces until at_ fits, as far as
  // possible.
  void StepAsideBy(ValueId v) {
    Undo(MakerOf(v), kInSet, nullptr);
    while (BytesOf(at_) + HeldBytes() > mark_ && execs_.size() <= most_execs_ &&
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

  std::vector<uint8_t> may_rerun_;  // by op
  std::vector<int64_t> state_;      // by op: generator state, if re-run
  OpId at_ = 0;                     // the next first run, from the end
  std::vector<uint8_t> level_;      // by storage; 0: not in the set
  std::vector<ValueId> value_;      // by storage: the version in the set
  std::vector<uint8_t> is_held_;    // by storage: its first life is held
  std::vector<StorageId> set_;
  std::vector<int32_t> place_;   // by storage: in set_
  std::vector<uint8_t> stays_;   // by storage: pinned, and in one version
  std::vector<int32_t> reruns_;  // by op
  std::vector<OpId> execs_;      // from the end
  std::vector<Change> changes_;  // since the last first run
  int64_t live_;
  uint8_t most_level_ = kReduced;
  std::vector<double> weights_;  // by storage, if random
  int64_t ticks_ = 0;
};

}  // namespace

std::vector<OpId> Unwind(const Problem& problem, const UnwindOptions& options,
                         Effort& effort) {
  return Unwinder(problem, options, effort).Run();
}

}  // namespace reprise::planner
