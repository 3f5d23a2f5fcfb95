// SPDX-License-Identifier: Apache-2.0
//
// The trade-off curve. One archive serves all budgets, so the curve is
// monotone by construction, and a bound proven at a larger budget holds at
// every smaller one.
//
//   descending   every budget, largest first; each point is streamed as soon
//                as it is searched
//   ascending    again those that are not settled, smallest first, for up to
//                twice the ticks: what fits in less fits too
//   again        longer, while the caller gives time (until_stopped)
//
// A later search may improve a point that was already streamed. The point is
// then streamed again, before any point that would contradict it, so that the
// last values seen are monotone at every moment. All passes together take at
// most twice the ticks of one plan.
//
// A sweep that is interrupted keeps what its searches proved (solve.h): a bound
// holds at every smaller budget, a refusal at every budget below its bytes, and
// neither depends on how the search that proved it ended.
#include <algorithm>
#include <optional>

#include "planner/bounds/screen.h"
#include "planner/model/archive.h"
#include "planner/model/effort.h"
#include "planner/model/flags.h"
#include "planner/model/problem.h"
#include "planner/planner.h"
#include "planner/reduce.h"
#include "planner/search/solve.h"

namespace reprise::planner {
namespace {

// Returns distinct budgets, largest first.
std::vector<int64_t> Budgets(int64_t most, int64_t least, int points) {
  std::vector<int64_t> budgets;
  for (int i = 0; i < points; ++i) {
    const __int128 step = static_cast<__int128>(most - least) * i;
    const int64_t budget =
        most - static_cast<int64_t>(step / std::max(1, points - 1));
    if (budgets.empty() || budget < budgets.back()) budgets.push_back(budget);
  }
  return budgets;
}

// Curve: the state of one sweep.
class Curve {
 public:
  // The problem may be that of a reduction.
  Curve(const Problem& problem, const Reduction* reduction,
        const Request& request, const std::vector<int64_t>& budgets,
        Known& known, const std::function<void(const CurvePoint&)>& on_point)
      : problem_(problem),
        reduction_(reduction),
        request_(request),
        budgets_(budgets),
        known_(known),
        on_point_(on_point),
        solutions_(budgets.size()),
        searched_(budgets.size()) {}

  StatusOr<std::vector<CurvePoint>> Run() {
    const int64_t all = TicksOf(problem_, request_);
    const int64_t share =
        std::max<int64_t>(1, all / static_cast<int64_t>(budgets_.size()));
    for (size_t i = 0; i < budgets_.size(); ++i) {
      Search(i, share);
      RETURN_IF_ERROR(Stream(i + 1));
    }
    int64_t unsettled = 0;
    for (size_t i = 0; i < budgets_.size(); ++i) unsettled += !Settled(i);
    for (size_t i = budgets_.size(); i-- > 0 && unsettled > 0;) {
      if (Settled(i)) continue;
      const int64_t left = (2 * all - ticks_) / unsettled--;
      Search(i, std::clamp<int64_t>(left, 1, 2 * share));
      RETURN_IF_ERROR(Stream(budgets_.size()));
    }
    for (int64_t ticks = share * 3;
         request_.until_stopped && !interrupted_ && !AllSettled(); ticks *= 2) {
      for (size_t i = 0; i < budgets_.size(); ++i) {
        Search(i, ticks);
        RETURN_IF_ERROR(Stream(budgets_.size()));
      }
    }
    return sent_;
  }

 private:
  void Search(size_t i, int64_t ticks) {
    if (interrupted_ || Settled(i)) return;
    Request at = request_;
    at.budget_bytes = budgets_[i];
    at.until_stopped = false;
    at.max_ticks = std::max<int64_t>(1, ticks);
    at.on_progress = {};
    Effort effort(at.max_ticks, request_.should_stop);
    const Solution solution = Solve(problem_, at, known_, effort);
    interrupted_ = effort.interrupted();
    ticks_ += effort.ticks();
    searched_[i] = true;
    Solution& known = solutions_[i];
    const int64_t added_ns = std::max(known.added_ns, solution.added_ns);
    if (!known.impossible) known = solution;
    known.added_ns = added_ns;
    if (solution.impossible && solution.infeasible.smallest_budget_bytes >
                                   least_.smallest_budget_bytes) {
      least_ = solution.infeasible;
    }
  }

  // Returns whether another search would add nothing: nothing fits in so
  // little, or the gap is reached.
  bool Settled(size_t i) {
    Solution& known = solutions_[i];
    if (budgets_[i] < least_.smallest_budget_bytes) {
      known.impossible = true;
      known.infeasible = least_;
    }
    if (known.impossible) return true;
    const Archive::Point* best = known_.archive.Best(budgets_[i]);
    return searched_[i] && best != nullptr &&
           Overhead(best->time_ns - problem_.base.time_ns - known.added_ns,
                    problem_.base.time_ns) <= request_.target_gap;
  }

  // Returns the point as it is known now; a bound of a larger budget counts
  // too.
  StatusOr<CurvePoint> PointAt(size_t i) {
    if (i > 0) {
      solutions_[i].added_ns =
          std::max(solutions_[i].added_ns, solutions_[i - 1].added_ns);
    }
    ASSIGN_OR_RETURN(const Plan plan, PlanFrom(problem_, budgets_[i],
                                               solutions_[i], known_.archive));
    CurvePoint point{.budget_bytes = budgets_[i],
                     .feasible = plan.feasible,
                     .bound = plan.bound,
                     .infeasible = plan.infeasible};
    if (reduction_ != nullptr && !plan.feasible) {
      point.infeasible = reduction_->Expand(point.infeasible);
    }
    if (plan.feasible) {
      point.peak_bytes = plan.evaluation.peak_bytes;
      point.time_ns = plan.evaluation.time_ns;
      point.overhead = plan.overhead;
    }
    return point;
  }

  bool IsKnown(size_t i) const {
    if (i >= sent_.size()) return false;
    const Archive::Point* best = known_.archive.Best(budgets_[i]);
    const int64_t added_ns =
        std::max(solutions_[i].added_ns,
                 i > 0 ? solutions_[i - 1].added_ns : int64_t{0});
    return sent_[i].feasible == (best != nullptr) &&
           (best == nullptr || (sent_[i].time_ns == best->time_ns &&
                                sent_[i].peak_bytes == best->peak_bytes)) &&
           sent_[i].bound >= Overhead(added_ns, problem_.base.time_ns);
  }

  // Sends those of the first `count` points that are new or have changed.
  Status Stream(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (IsKnown(i)) continue;
      ASSIGN_OR_RETURN(const CurvePoint point, PointAt(i));
      if (i < sent_.size()) {
        sent_[i] = point;
      } else {
        sent_.push_back(point);
      }
      if (on_point_) on_point_(point);
    }
    return OkStatus();
  }

  bool AllSettled() {
    for (size_t i = 0; i < budgets_.size(); ++i) {
      if (!Settled(i)) return false;
    }
    return true;
  }

  const Problem& problem_;
  const Reduction* reduction_;
  const Request& request_;
  const std::vector<int64_t>& budgets_;
  Known& known_;
  const std::function<void(const CurvePoint&)>& on_point_;
  std::vector<Solution> solutions_;
  std::vector<bool> searched_;
  Infeasible least_;  // the largest proof that nothing fits
  std::vector<CurvePoint> sent_;
  int64_t ticks_ = 0;  // of all searches
  bool interrupted_ = false;
};

}  // namespace

StatusOr<std::vector<CurvePoint>> Sweep(
    const StepGraph& graph, const Request& request, int points,
    const std::function<void(const CurvePoint&)>& on_point) {
  RETURN_IF_ERROR(Validate(graph));
  RETURN_IF_ERROR(CheckRequest(request));
  RETURN_IF_ERROR(CheckHasNoHost(request));
  if (points < 1 || points > 10'000) {
    return InvalidArgument("points: must be between 1 and 10000, got " +
                           std::to_string(points));
  }
  const Problem original = MakeProblem(graph, request.capabilities);
  // Peaks and times of the reduced graph are those of the original.
  std::optional<Reduction> reduction;
  if (MayReduce(graph, request)) reduction.emplace(original);
  if (reduction && !reduction->IsWorthIt()) reduction.reset();
  std::optional<Problem> smaller;
  if (reduction) {
    smaller.emplace(MakeProblem(reduction->graph(), request.capabilities));
  }
  const Problem& problem = smaller ? *smaller : original;
  Known known(problem);
  const std::vector<int64_t> budgets =
      Budgets(problem.base.peak_bytes,
              LargestWorkingSet(problem).smallest_budget_bytes, points);

  return Curve(problem, reduction ? &*reduction : nullptr, request, budgets,
               known, on_point)
      .Run();
}

}  // namespace reprise::planner
