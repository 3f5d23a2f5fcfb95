// SPDX-License-Identifier: Apache-2.0
#include "formats/solve/solve_plan.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "base/str_cat.h"

namespace reprise::formats {
namespace {

using Point = planner::Archive::Point;
using planner::Plan;
using planner::Progress;

constexpr int kMost = 256;

// FNV-1a over the schedule.
uint64_t DigestOf(const Plan& plan) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const planner::Entry& entry : plan.schedule) {
    const uint32_t word = static_cast<uint32_t>(entry.id) * 2 +
                          (entry.kind == planner::Entry::Kind::kFree);
    for (int shift = 0; shift < 32; shift += 8) {
      digest = (digest ^ ((word >> shift) & 0xff)) * 0x100000001b3;
    }
  }
  return digest;
}

bool IsImpossible(const Plan& plan) {
  return !plan.feasible && !plan.undecided;
}

// The exchange between searches on several threads.
class SharedFinds : public planner::Exchange {
 public:
  void Offer(const Point& found) override {
    const std::lock_guard lock(mutex_);
    if (!best_ || found.time_ns < best_->time_ns) best_ = found;
  }
  void OfferBound(int64_t added_ns) override {
    const std::lock_guard lock(mutex_);
    bound_ns_ = std::max(bound_ns_, added_ns);
  }
  std::optional<Point> Faster(int64_t time_ns) override {
    const std::lock_guard lock(mutex_);
    if (!best_ || best_->time_ns >= time_ns) return std::nullopt;
    return best_;
  }
  int64_t BoundNs() override {
    const std::lock_guard lock(mutex_);
    return bound_ns_;
  }

  // Only one piece of work is shared at a time; other callers work alone.
  void Together(const std::function<void()>& mine,
                const std::function<void()>& help) override {
    {
      const std::lock_guard lock(mutex_);
      if (help_ == nullptr) {
        help_ = &help;
        owner_ = std::this_thread::get_id();
        wanted_ = true;
      }
    }
    mine();
    std::unique_lock lock(mutex_);
    if (help_ != &help) return;
    wanted_ = false;
    left_.wait(lock, [this] { return helpers_ == 0; });
    help_ = nullptr;
    owner_ = {};
  }

  // Helps if help is wanted; searches call this as often as they can.
  void Help() {
    if (!wanted_) return;
    std::unique_lock lock(mutex_);
    if (!wanted_ || owner_ == std::this_thread::get_id()) return;
    const std::function<void()>& help = *help_;
    ++helpers_;
    lock.unlock();
    help();
    lock.lock();
    if (--helpers_ == 0) left_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::optional<Point> best_;
  int64_t bound_ns_ = 0;
  std::atomic<bool> wanted_ = false;
  const std::function<void()>* help_ = nullptr;
  std::thread::id owner_;
  int helpers_ = 0;
  std::condition_variable left_;
};

// The searches of one request, with different seeds.
class Searches {
 public:
  Searches(const planner::StepGraph& graph, const planner::Request& request,
           int count)
      : graph_(graph),
        request_(request),
        plans_(static_cast<size_t>(count)),
        first_ended_(count) {}

  StatusOr<Plan> Run(int threads) {
    std::vector<std::thread> others;
    for (int i = 1; i < std::min<int>(threads, Count()); ++i) {
      others.emplace_back([this] { Work(); });
    }
    Work();
    for (std::thread& other : others) other.join();
    return Merge();
  }

 private:
  int Count() const { return static_cast<int>(plans_.size()); }

  void Work() {
    for (int i = next_++; i < Count(); i = next_++) {
      if (i <= first_ended_ || i == 0) One(i);
    }
  }

  void One(int index) {
    planner::Request request = request_;
    // Search 0 uses the request's own seed, as MakePlan would.
    request.seed += static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15;
    if (request_.should_stop) {
      request.should_stop = [this, index] { return ShouldStop(index); };
    } else {
      request.should_stop = [this, index] { return index > first_ended_; };
    }
    request.on_progress = [this, index](const Progress& progress) {
      OnProgress(index, progress);
    };
    if (request_.until_stopped) {
      request.search_is_over = [this] { return reached_together_.load(); };
      request.exchange = &finds_;
      request.part =
          index == 0 ? planner::Part::kProve : planner::Part::kImprove;
    }
    StatusOr<Plan> plan = planner::MakePlan(graph_, request);
    const bool reached =
        plan.ok() && (IsImpossible(*plan) ||
                      (plan->feasible &&
                       plan->overhead - plan->bound <= request_.target_gap));
    const std::lock_guard lock(mutex_);
    // No earlier search has ended this one, so its answer counts.
    if (reached && index <= first_ended_) first_ended_ = index;
    plans_[static_cast<size_t>(index)] = std::move(plan);
  }

  bool ShouldStop(int index) {
    finds_.Help();
    if (index > first_ended_) return true;
    const std::lock_guard lock(mutex_);
    stopped_ = stopped_ || request_.should_stop();
    return stopped_;
  }

  void OnProgress(int index, const Progress& progress) {
    const std::lock_guard lock(mutex_);
    if (index > first_ended_) return;
    if (progress.overhead >= 0 &&
        (best_.overhead < 0 || progress.overhead < best_.overhead)) {
      best_.overhead = progress.overhead;
    }
    best_.bound = std::max(best_.bound, progress.bound);
    best_.pass = progress.pass;
    if (request_.until_stopped && best_.overhead >= 0 &&
        best_.overhead - best_.bound <= request_.target_gap) {
      reached_together_ = true;
    }
    if (request_.on_progress) request_.on_progress(best_);
  }

  StatusOr<Plan> Merge() {
    const Plan* best = nullptr;
    const Plan* proof = nullptr;  // the one with the best bound
    int64_t ticks = 0;
    const int last = request_.until_stopped
                         ? Count() - 1
                         : std::min<int>(first_ended_, Count() - 1);
    for (int i = 0; i <= last; ++i) {
      const auto& plan = plans_[static_cast<size_t>(i)];
      if (!plan.has_value()) continue;
      RETURN_IF_ERROR(plan->status());
      ticks += (*plan)->ticks;
      if (IsImpossible(**plan)) return **plan;
      if (proof == nullptr || IsBetterBound(**plan, *proof)) proof = &**plan;
      if (best == nullptr || IsBetter(**plan, *best)) best = &**plan;
    }
    Plan merged = *best;
    merged.ticks = ticks;
    merged.interrupted = stopped_;
    if (!merged.feasible) return merged;
    TakeBound(*proof, merged);
    return merged;
  }

  static bool IsBetterBound(const Plan& a, const Plan& b) {
    return std::tuple(a.bound_ns, a.bound_proof) >
           std::tuple(b.bound_ns, b.bound_proof);
  }

  // Copies the bound of one search to the plan of another.
  static void TakeBound(const Plan& proof, Plan& merged) {
    const int64_t added_ns = merged.evaluation.time_ns - merged.base_time_ns;
    merged.bound = proof.bound;
    merged.bound_ns = proof.bound_ns;
    merged.bound_proof = proof.bound_proof;
    merged.certificate = proof.certificate;
    merged.is_optimal =
        planner::IsProven(merged.base_time_ns, added_ns, proof.bound_ns);
    if (merged.bound_ns == 0) {
      merged.bound_proof = added_ns == 0 ? planner::BoundProof::kChecked
                                         : planner::BoundProof::kNone;
    }
    merged.proven_optimal = merged.is_optimal &&
                            merged.bound_proof == planner::BoundProof::kChecked;
  }

  static bool IsBetter(const Plan& a, const Plan& b) {
    if (a.feasible != b.feasible) return a.feasible;
    const auto rank = [](const Plan& plan) {
      return std::tuple(plan.evaluation.time_ns, plan.evaluation.execs,
                        plan.evaluation.peak_bytes, DigestOf(plan));
    };
    return rank(a) < rank(b);
  }

  const planner::StepGraph& graph_;
  const planner::Request& request_;
  std::mutex mutex_;  // guards the following, and the callbacks
  std::vector<std::optional<StatusOr<Plan>>> plans_;
  SharedFinds finds_;
  Progress best_;
  bool stopped_ = false;
  std::atomic<int> next_ = 0;
  // The first search that reached its target; later ones are stopped.
  std::atomic<int> first_ended_;
  std::atomic<bool> reached_together_ = false;
};

}  // namespace

StatusOr<Plan> SolvePlan(const planner::StepGraph& graph,
                         const planner::Request& request,
                         const SolveOptions& options) {
  if (options.threads < 1 || options.threads > kMost) {
    return InvalidArgument(StrCat("threads: must be between 1 and ", kMost,
                                  ", got ", options.threads));
  }
  if (options.searches < 0 || options.searches > kMost) {
    return InvalidArgument(StrCat("searches: must be between 0 and ", kMost,
                                  ", got ", options.searches));
  }
  const int count =
      request.until_stopped ? options.threads : std::max(1, options.searches);
  const bool endless = request.until_stopped && !request.should_stop;
  if (count == 1 || endless) return planner::MakePlan(graph, request);
  return Searches(graph, request, count).Run(options.threads);
}

}  // namespace reprise::formats
