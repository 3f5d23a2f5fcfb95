// SPDX-License-Identifier: Apache-2.0
#include "planner/chain_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "planner/unread.h"

namespace reprise::planner {
namespace {

constexpr int kMostStages = 64;
constexpr int kMostSlots = 400;
constexpr int kFewestSlots = 50;
constexpr int kMostRounds = 4;
constexpr int kMostExecsPerOp = 20;

// ChainModel: a Rotor chain and what its steps mean in ops.
class ChainModel {
 public:
  ChainModel(const Problem& problem, const Chain& chain)
      : problem_(problem),
        chain_(chain),
        stage_of_(StagesOfOps(problem, chain)),
        forward_(chain.stage_count()),
        backward_(chain.stage_count()),
        dropped_(chain.stage_count()) {
    for (OpId o = 0; o < problem.op_count; ++o) {
      (o < chain.boundary ? forward_ : backward_)[stage_of_[o]].push_back(o);
    }
    FindGradients();
    rotor_.input_gradient_bytes = gradient_before_.front();
    for (int i = 0; i < chain.stage_count(); ++i) AddStage(i);
  }

  const RotorChain& rotor() const { return rotor_; }

  // Bytes that the chain does not decide about: static, and values that nobody
  // may make again, at the boundary.
  int64_t FixedBytes() const {
    int64_t bytes = problem_.static_bytes;
    for (ValueId v = 0; v < problem_.versions.value_count(); ++v) {
      if (problem_.versions.maker[v] >= chain_.boundary ||
          problem_.rules.may_remake[v] != 0) {
        continue;
      }
      const auto uses = problem_.Uses(v);
      if (!uses.empty() && uses.back() >= chain_.boundary) {
        bytes += problem_.BytesOf(v);
      }
    }
    return bytes;
  }

  std::vector<OpId> Execs(const std::vector<RotorStep>& steps) const {
    std::vector<OpId> execs;
    std::vector<uint8_t> ran(problem_.op_count, 0);
    const size_t most =
        kMostExecsPerOp * static_cast<size_t>(problem_.op_count);
    const auto run = [&](OpId o) {
      if (ran[o] != 0 && problem_.rules.may_rerun[o] == 0) return;
      ran[o] = 1;
      execs.push_back(o);
    };
    for (const RotorStep& step : steps) {
      if (execs.size() > most) return {};
      if (step.kind != RotorStep::Kind::kBackward) {
        for (const OpId o : forward_[step.stage]) run(o);
        continue;
      }
      for (const OpId o : dropped_[step.stage][step.option]) run(o);
      for (const OpId o : backward_[step.stage]) run(o);
    }
    return execs;
  }

 private:
  OpId LastUse(ValueId v, OpId before) const {
    OpId last = problem_.versions.maker[v];
    for (const OpId use : problem_.Uses(v)) {
      if (use < before) last = use;
    }
    return last;
  }

  // Bytes made by backward ops alive before the backward of each stage begins,
  // from the last stage to the first; [0] is before that of stage 0's end.
  void FindGradients() {
    const int count = problem_.op_count;
    std::vector<int64_t> alive(count + 1, 0);
    for (ValueId v = 0; v < problem_.versions.value_count(); ++v) {
      const OpId maker = problem_.versions.maker[v];
      if (maker < chain_.boundary || !problem_.versions.IsFirst(v)) continue;
      const ValueId last_version =
          problem_.versions.Last(problem_.versions.storage[v]);
      OpId last = maker;
      for (ValueId u = v; u <= last_version; ++u) {
        const auto uses = problem_.Uses(u);
        if (!uses.empty()) last = std::max(last, uses.back());
      }
      alive[maker] += problem_.BytesOf(v);
      if (last < count) alive[last] -= problem_.BytesOf(v);
    }
    // alive[o]: after op o.
    std::partial_sum(alive.begin(), alive.end(), alive.begin());
    gradient_before_.assign(chain_.stage_count() + 1, 0);
    int64_t now = 0;
    for (int i = chain_.stage_count(); i-- > 0;) {
      gradient_before_[i + 1] = now;
      if (!backward_[i].empty()) now = alive[backward_[i].back()];
    }
    gradient_before_[0] = now;
    alive_ = std::move(alive);
  }

  // Most bytes of values made in a stage while its forward runs, when only
  // those marked outlive their last use there.
  int64_t ForwardPeak(int stage, const std::vector<uint8_t>& kept) const {
    int64_t live = 0, peak = 0;
    std::vector<std::pair<OpId, int64_t>> ends;
    for (const OpId o : forward_[stage]) {
      for (const StorageId s : problem_.Writes(o)) {
        const ValueId first = problem_.versions.first_value[s];
        if (problem_.rules.may_remake[first] == 0) continue;
        live += problem_.bytes[s];
        OpId last = o;
        for (ValueId v = first; v <= problem_.versions.Last(s); ++v) {
          last = std::max(last, LastUse(v, chain_.boundary));
        }
        if (kept[s] == 0 && last <= chain_.ends[stage]) {
          ends.emplace_back(last, problem_.bytes[s]);
        }
      }
      peak = std::max(peak, live + problem_.workspace[o]);
      for (auto& [last, bytes] : ends) {
        if (last > o || bytes == 0) continue;
        live -= bytes;
        bytes = 0;
      }
    }
    return peak;
  }

  void AddStage(int i) {
    const Versions& versions = problem_.versions;
    RotorStage stage{.output_bytes = chain_.crossing_bytes[i],
                     .gradient_bytes = gradient_before_[i + 1]};
    if (i + 1 == chain_.stage_count()) stage.output_bytes = 0;
    int64_t backward_ns = 0, backward_peak = 0;
    for (const OpId o : forward_[i]) {
      stage.forward_ns += problem_.rules.rerun_ns[o];
    }
    for (const OpId o : backward_[i]) {
      backward_ns += problem_.time_ns[o];
      int64_t bytes = (o > 0 ? alive_[o - 1] : 0) + problem_.workspace[o];
      for (const StorageId s : problem_.Writes(o)) bytes += problem_.bytes[s];
      backward_peak = std::max(backward_peak, bytes);
    }
    const int64_t backward_extra = std::max<int64_t>(
        0, backward_peak - gradient_before_[i + 1] - gradient_before_[i]);

    // What the backward reads of this stage, costliest per byte first.
    struct Saved {
      StorageId storage;
      OpId maker;
      double worth;
      bool crosses;
    };
    std::vector<Saved> saved;
    for (const OpId o : forward_[i]) {
      for (const StorageId s : problem_.Writes(o)) {
        const ValueId v = versions.Last(s);
        const auto uses = problem_.Uses(v);
        if (problem_.rules.may_remake[v] == 0 || uses.empty()) continue;
        const bool crosses = LastUse(v, chain_.boundary) > chain_.ends[i];
        if (uses.back() < chain_.boundary && !crosses) continue;
        saved.push_back({s, o,
                         static_cast<double>(problem_.rules.rerun_ns[o] + 1) /
                             static_cast<double>(problem_.bytes[s] + 1),
                         crosses});
      }
    }
    std::stable_sort(saved.begin(), saved.end(),
                     [](const Saved& a, const Saved& b) {
                       if (a.crosses != b.crosses) return a.crosses;
                       return a.worth > b.worth;
                     });
    int64_t inner = 0;
    for (const Saved& value : saved) {
      if (!value.crosses) inner += problem_.bytes[value.storage];
    }
    const std::vector<uint8_t> nothing(problem_.bytes.size(), 0);
    stage.forward_temporary_bytes =
        std::max<int64_t>(0, ForwardPeak(i, nothing) - stage.output_bytes);
    for (const int64_t limit : {inner, inner / 2, int64_t{0}}) {
      RotorOption option{.forward_ns = stage.forward_ns,
                         .backward_ns = backward_ns,
                         .kept_bytes = stage.output_bytes};
      std::vector<uint8_t> kept(problem_.bytes.size(), 0);
      std::vector<OpId> again;
      int64_t sum = 0, dropped_bytes = 0;
      for (const Saved& value : saved) {
        const int64_t bytes = problem_.bytes[value.storage];
        if (value.crosses) {
          kept[value.storage] = 1;
          continue;
        }
        if (sum + bytes <= limit) {
          sum += bytes;
          kept[value.storage] = 1;
          option.kept_bytes += bytes;
        } else {
          dropped_bytes += bytes;
          again.push_back(value.maker);
        }
      }
      if (limit < inner && again.empty()) continue;
      AddMakers(i, kept, again);
      for (const OpId o : again) {
        option.backward_ns += problem_.rules.rerun_ns[o];
      }
      option.forward_temporary_bytes =
          std::max<int64_t>(0, ForwardPeak(i, kept) - option.kept_bytes);
      option.backward_temporary_bytes =
          std::max(backward_extra + dropped_bytes,
                   again.empty() ? 0 : stage.forward_temporary_bytes);
      stage.options.push_back(option);
      dropped_[i].push_back(std::move(again));
    }
    rotor_.stages.push_back(std::move(stage));
  }

  // Adds to `again` what its ops need of this stage that is not kept; base
  // order.
  void AddMakers(int stage, const std::vector<uint8_t>& kept,
                 std::vector<OpId>& again) const {
    const Versions& versions = problem_.versions;
    const OpId begin = stage == 0 ? 0 : chain_.ends[stage - 1] + 1;
    std::vector<uint8_t> in(chain_.ends[stage] - begin + 1, 0);
    for (const OpId o : again) in[o - begin] = 1;
    for (OpId o = chain_.ends[stage]; o >= begin; --o) {
      if (in[o - begin] == 0) continue;
      for (const ValueId u : versions.Need(o)) {
        const OpId maker = versions.maker[u];
        if (maker < begin || kept[versions.storage[u]] != 0 ||
            problem_.rules.may_remake[u] == 0) {
          continue;
        }
        in[maker - begin] = 1;
      }
    }
    again.clear();
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i] != 0) again.push_back(begin + static_cast<OpId>(i));
    }
  }

  const Problem& problem_;
  const Chain& chain_;
  const std::vector<int32_t> stage_of_;
  std::vector<std::vector<OpId>> forward_, backward_;    // by stage
  std::vector<std::vector<std::vector<OpId>>> dropped_;  // by stage, option
  std::vector<int64_t> gradient_before_, alive_;
  RotorChain rotor_;
};

// Replays execs, or what the generator makes of them where versions clash or
// the executor forbids their places. False: cannot be run.
bool Replay(const Problem& problem, std::vector<OpId> execs,
            Generator& generator, Effort& effort, ChainSchedule& schedule) {
  if (execs.empty()) return false;
  execs = WithoutUnread(problem, execs);
  const StatusOr<Evaluation> evaluation = Evaluate(
      *problem.graph,
      WithFrees(*problem.graph, execs, problem.capabilities.free_policy),
      problem.capabilities);
  effort.Spend(4 * static_cast<int64_t>(execs.size()));
  if (evaluation.ok()) {
    schedule.peak_bytes = evaluation->peak_bytes;
    schedule.time_ns = evaluation->time_ns;
    schedule.execs = std::move(execs);
    return true;
  }
  const int64_t before = generator.ticks();
  const Generated generated = generator.Generate(FlagsOfExecs(problem, execs));
  effort.Spend(generator.ticks() - before);
  if (!generated.valid) return false;
  schedule.peak_bytes = generated.peak_bytes;
  schedule.time_ns = generated.time_ns;
  schedule.execs = generator.execs();
  return true;
}

// The table looks at stages^3 / 6 splits per slot; an eighth of the effort.
int64_t SlotsFor(const Chain& chain, const Effort& effort) {
  const int64_t stages = chain.stage_count();
  return effort.most_ticks() / 8 / (1 + stages * stages * stages / 6);
}

// Joined: a chain of few enough stages for a table, and the last table made.
struct Joined {
  Joined(const Problem& problem, const Chain& whole, int stages)
      : chain(JoinStages(problem, whole, stages)), model(problem, chain) {}

  const Chain chain;
  const ChainModel model;
  std::unique_ptr<Rotor> rotor;
  int64_t slot_bytes = 0;  // of the table
  int64_t bytes = 0;       // that it has slots for
};

}  // namespace

struct ChainSchedules::State {
  // What a run of Revolve's schedule came to.
  struct Ran {
    bool ok = false;
    int64_t peak_bytes = 0;
  };

  explicit State(const Problem& p) : problem(p) {}

  // The most slots that fit: by bisection.
  void AddRevolve(int64_t budget_bytes, Generator& generator, Effort& effort,
                  std::vector<ChainSchedule>& schedules) {
    if (model == nullptr) model = std::make_unique<ChainModel>(problem, *chain);
    const int length = chain->stage_count();
    int low = 1, high = length;
    while (low <= high && !effort.Over()) {
      const int slots = low + (high - low) / 2;
      auto known = revolved.find(slots);
      if (known == revolved.end()) {
        ChainSchedule schedule{.solver = "revolve"};
        const bool ran =
            RevolveForwardSteps(length, slots) <=
                int64_t{kMostExecsPerOp} * length &&
            Replay(problem, model->Execs(RevolveSteps(length, slots)),
                   generator, effort, schedule);
        known = revolved.emplace(slots, Ran{ran, schedule.peak_bytes}).first;
        if (ran) schedules.push_back(std::move(schedule));
      }
      const Ran& ran = known->second;
      if (!ran.ok || ran.peak_bytes <= budget_bytes) {
        low = slots + 1;
      } else {
        high = slots - 1;
      }
    }
  }

  // Slots as fine as the table may be; whole where the bytes allow it.
  void MakeTable(Joined& at, int64_t bytes, Effort& effort) const {
    int64_t slot = 0;
    for (const RotorStage& stage : at.model.rotor().stages) {
      slot = std::gcd(slot, stage.output_bytes);
      slot = std::gcd(slot, stage.gradient_bytes);
      for (const RotorOption& option : stage.options) {
        slot = std::gcd(slot, option.kept_bytes);
      }
    }
    const int64_t slots =
        std::min<int64_t>(kMostSlots, SlotsFor(at.chain, effort));
    slot = std::max({slot, int64_t{1}, (bytes + slots - 1) / slots});
    if (at.rotor != nullptr && at.bytes >= bytes && at.slot_bytes <= 2 * slot) {
      return;
    }
    at.rotor = std::make_unique<Rotor>(at.model.rotor(), slot,
                                       static_cast<int>(bytes / slot));
    at.slot_bytes = slot;
    at.bytes = bytes;
    effort.Spend(at.rotor->ticks());
  }

  void AddRotor(Joined& at, int64_t budget_bytes, Generator& generator,
                Effort& effort, std::vector<ChainSchedule>& schedules) const {
    const int64_t bytes = budget_bytes - at.model.FixedBytes();
    if (bytes <= 0) return;
    MakeTable(at, bytes, effort);
    int64_t within = bytes;
    for (int round = 0; round < kMostRounds && !effort.Over(); ++round) {
      if (at.rotor->TimeNs(within) == Rotor::kImpossible) return;
      ChainSchedule schedule{.solver = "rotor"};
      if (!Replay(problem, at.model.Execs(at.rotor->Steps(within)), generator,
                  effort, schedule)) {
        return;
      }
      const int64_t over = schedule.peak_bytes - budget_bytes;
      schedules.push_back(std::move(schedule));
      if (over <= 0) return;
      within -= over;
    }
  }

  const Problem& problem;
  std::optional<Chain> chain;                     // found when first asked for
  std::unique_ptr<ChainModel> model;              // of the whole chain
  std::map<int, Ran> revolved;                    // by slots
  std::map<int, std::unique_ptr<Joined>> joined;  // by the most stages
};

ChainSchedules::ChainSchedules(const Problem& problem)
    : state_(std::make_unique<State>(problem)) {}
ChainSchedules::~ChainSchedules() = default;

std::vector<ChainSchedule> ChainSchedules::For(int64_t budget_bytes,
                                               Generator& generator,
                                               Effort& effort) {
  std::vector<ChainSchedule> schedules;
  State& state = *state_;
  if (!state.chain) state.chain = FindChain(state.problem);
  if (state.chain->stage_count() < 2) return schedules;
  state.AddRevolve(budget_bytes, generator, effort, schedules);
  for (int stages = kMostStages; stages >= 8 && !effort.Over(); stages /= 2) {
    std::unique_ptr<Joined>& joined = state.joined[stages];
    if (joined == nullptr) {
      joined = std::make_unique<Joined>(state.problem, *state.chain, stages);
    }
    if (SlotsFor(joined->chain, effort) < kFewestSlots) continue;
    state.AddRotor(*joined, budget_bytes, generator, effort, schedules);
    break;
  }
  return schedules;
}

}  // namespace reprise::planner
