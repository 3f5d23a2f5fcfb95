// SPDX-License-Identifier: Apache-2.0
#include "planner/chains/chain_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "planner/chains/chain_model.h"
#include "planner/model/list_moves.h"

namespace reprise::planner {
namespace {

constexpr int kMostStages = 64;
constexpr int kMostSlots = 400;
constexpr int kFewestSlots = 50;
constexpr int kMostChainRounds = 4;

// Evaluates execs, or what the generator makes of them if versions clash or the
// executor forbids their positions. Returns false if they cannot be run.
bool ReplayExecs(const Problem& problem, std::vector<OpId> execs,
                 Generator& generator, Effort& effort,
                 Archive::Point& schedule) {
  if (execs.empty()) return false;
  execs = WithoutUnread(problem, execs);
  const StatusOr<Evaluation> evaluation = EvaluateExecs(problem, execs);
  effort.Spend(4 * static_cast<int64_t>(execs.size()));
  if (evaluation.ok()) {
    schedule.peak_bytes = evaluation->peak_bytes;
    schedule.time_ns = evaluation->time_ns;
    schedule.execs = std::move(execs);
    return true;
  }
  const Generated generated =
      generator.Generate(FlagsOfExecs(problem, execs), effort);
  if (!generated.valid) return false;
  schedule.peak_bytes = generated.peak_bytes;
  schedule.time_ns = generated.time_ns;
  schedule.execs = generator.execs();
  return true;
}

// The table visits stages^3 / 6 splits per slot; it may use an eighth of the
// effort.
int64_t SlotsFor(const Chain& chain, const Effort& effort) {
  const int64_t stages = chain.stage_count();
  return effort.most_ticks() / 8 / (1 + stages * stages * stages / 6);
}

// A chain with few enough stages for a table, and the last table that was
// built.
struct Joined {
  Joined(const Problem& problem, const Chain& whole, int stages)
      : chain(JoinStages(problem, whole, stages)), model(problem, chain) {}

  const Chain chain;
  const ChainModel model;
  std::unique_ptr<Rotor> rotor;
  int64_t slot_bytes = 0;  // of the table
  int64_t bytes = 0;       // for which the table has slots
};

}  // namespace

struct ChainSchedules::State {
  // The result of evaluating a Revolve schedule.
  struct Ran {
    bool ok = false;
    int64_t peak_bytes = 0;
  };

  explicit State(const Problem& p) : problem(p) {}

  // Adds Revolve's schedule with the most slots that fit, found by bisection.
  void AddRevolve(int64_t budget_bytes, Generator& generator, Effort& effort,
                  std::vector<Archive::Point>& schedules) {
    if (model == nullptr) model = std::make_unique<ChainModel>(problem, *chain);
    const int length = chain->stage_count();
    int low = 1, high = length;
    while (low <= high && !effort.Over()) {
      const int slots = low + (high - low) / 2;
      auto known = revolved.find(slots);
      if (known == revolved.end()) {
        Archive::Point schedule{.solver = "revolve"};
        const bool ran =
            RevolveForwardSteps(length, slots) <=
                int64_t{kMostExecsPerOp} * length &&
            ReplayExecs(problem, model->Execs(RevolveSteps(length, slots)),
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

  // Builds a table with slots as fine as the effort allows, and exact if
  // possible.
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
                                       static_cast<int>(bytes / slot),
                                       [&effort] { return effort.StopNow(); });
    at.slot_bytes = slot;
    at.bytes = at.rotor->interrupted() ? 0 : bytes;
    effort.Spend(at.rotor->ticks());
  }

  void AddRotor(Joined& at, int64_t budget_bytes, Generator& generator,
                Effort& effort, std::vector<Archive::Point>& schedules) const {
    const int64_t bytes = budget_bytes - at.model.FixedBytes();
    if (bytes <= 0) return;
    MakeTable(at, bytes, effort);
    int64_t within = bytes;
    for (int round = 0; round < kMostChainRounds && !effort.Over(); ++round) {
      if (at.rotor->TimeNs(within) == Rotor::kImpossible) return;
      Archive::Point schedule{.solver = "rotor"};
      if (!ReplayExecs(problem, at.model.Execs(at.rotor->Steps(within)),
                       generator, effort, schedule)) {
        return;
      }
      const int64_t over = schedule.peak_bytes - budget_bytes;
      schedules.push_back(std::move(schedule));
      if (over <= 0) return;
      within -= over;
    }
  }

  const Problem& problem;
  std::optional<Chain> chain;                     // found on first use
  std::unique_ptr<ChainModel> model;              // of the whole chain
  std::map<int, Ran> revolved;                    // by slots
  std::map<int, std::unique_ptr<Joined>> joined;  // by the most stages
};

ChainSchedules::ChainSchedules(const Problem& problem)
    : state_(std::make_unique<State>(problem)) {}
ChainSchedules::~ChainSchedules() = default;

std::vector<Archive::Point> ChainSchedules::For(int64_t budget_bytes,
                                                Generator& generator,
                                                Effort& effort) {
  std::vector<Archive::Point> schedules;
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
