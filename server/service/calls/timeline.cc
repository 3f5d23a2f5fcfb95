// SPDX-License-Identifier: Apache-2.0
//
// GetTimeline: predicted curves from the evaluator's profile of the newest plan
// and of the step without a plan, measured curves from the newest traced steps.
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>

#include "formats/convert/graph_proto.h"
#include "server/service/calls/handlers.h"
#include "server/service/memory/memory_curve.h"
#include "server/service/memory/step_cache.h"
#include "server/service/planning/stored_plan.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

constexpr size_t kCurves = v1::Category_ARRAYSIZE;

// A predicted step: total bytes and their parts, one value per exec.
struct Profile {
  std::vector<int64_t> times_ns;
  std::vector<int64_t> total;
  std::array<std::vector<int64_t>, kCurves> parts;
  int64_t step_ns = 0;
};

// Splits the bytes of every exec by category. Bytes that belong to no storage
// are the op's workspace and duplicate outputs: temporary.
void SplitByCategory(const planner::StepGraph& graph,
                     const planner::Schedule& schedule, int64_t reserve_bytes,
                     Profile& profile) {
  std::vector<std::array<int64_t, kCurves>> change(schedule.size() + 1);
  for (const planner::Lifetime& life : planner::Lifetimes(graph, schedule)) {
    const planner::Storage& storage =
        graph.storages[static_cast<size_t>(life.storage)];
    auto category = static_cast<size_t>(storage.category);
    if (storage.category == planner::Category::kUnspecified) {
      category = v1::CATEGORY_UNKNOWN;
    }
    change[static_cast<size_t>(life.born)][category] += storage.bytes;
    change[static_cast<size_t>(life.dead)][category] -= storage.bytes;
  }
  std::array<int64_t, kCurves> live{};
  for (const planner::StaticPart& part : planner::StaticMemory(graph)) {
    live[static_cast<size_t>(part.category)] += part.bytes;
  }
  live[v1::CATEGORY_UNKNOWN] += reserve_bytes;
  size_t exec = 0;
  for (size_t entry = 0; entry < schedule.size(); ++entry) {
    for (size_t c = 0; c < kCurves; ++c) live[c] += change[entry][c];
    if (schedule[entry].kind != planner::Entry::Kind::kExec) continue;
    int64_t rest = profile.total[exec++];
    for (const int64_t bytes : live) rest -= bytes;
    for (size_t c = 0; c < kCurves; ++c) {
      const bool temporary = c == v1::CATEGORY_TEMPORARY;
      profile.parts[c].push_back(live[c] + (temporary ? rest : 0));
    }
  }
}

StatusOr<Profile> Predict(const planner::StepGraph& graph,
                          const planner::Schedule& schedule,
                          const planner::Capabilities& capabilities,
                          int64_t peak_bytes_with_reserve) {
  std::vector<planner::MemoryPoint> points;
  ASSIGN_OR_RETURN(const planner::Evaluation evaluation,
                   planner::Evaluate(graph, schedule, capabilities, &points));
  const int64_t reserve_bytes =
      std::max<int64_t>(0, peak_bytes_with_reserve - evaluation.peak_bytes);
  Profile profile;
  profile.step_ns = evaluation.time_ns;
  for (const planner::MemoryPoint& point : points) {
    profile.times_ns.push_back(point.start_ns);
    profile.total.push_back(point.bytes + reserve_bytes);
  }
  SplitByCategory(graph, schedule, reserve_bytes, profile);
  return profile;
}

void DrawCurves(const Profile& profile, const FoldWindow& window,
                v1::Curve& curve) {
  const auto draw = [&](const std::vector<int64_t>& bytes) {
    return MemoryCurve(profile.times_ns, bytes).Draw(profile.step_ns, window);
  };
  curve = draw(profile.total);
  // From the bottom of the stack: what is told least apart is static.
  std::array<size_t, kCurves> order;
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + v1::CATEGORY_STATIC, order.end());
  for (const size_t c : order) {
    const bool used =
        std::any_of(profile.parts[c].begin(), profile.parts[c].end(),
                    [](int64_t bytes) { return bytes != 0; });
    if (!used) continue;
    v1::Curve part = draw(profile.parts[c]);
    v1::CategoryBand& band = *curve.add_bands();
    band.set_category(static_cast<v1::Category>(c));
    band.mutable_max_bytes()->Swap(part.mutable_max_bytes());
  }
}

struct Curves {
  std::optional<Profile> predicted;
  std::optional<Profile> predicted_base;
  std::shared_ptr<const RecordedStep> measured;
  std::shared_ptr<const RecordedStep> measured_base;

  int64_t LongestNs() const {
    return std::max({predicted ? predicted->step_ns : 0,
                     predicted_base ? predicted_base->step_ns : 0,
                     measured ? measured->step_ns : 0,
                     measured_base ? measured_base->step_ns : 0});
  }
};

Status PredictFromPlan(Store& store, const std::string& plan_id, Curves& curves,
                       v1::Timeline& timeline) {
  ASSIGN_OR_RETURN(const StoredPlan plan, LoadStoredPlan(store, plan_id));
  timeline.set_budget_bytes(plan.proto.budget_bytes());
  if (plan.proto.feasible()) {
    ASSIGN_OR_RETURN(curves.predicted,
                     Predict(plan.graph, plan.schedule, plan.capabilities,
                             plan.proto.peak_bytes()));
  }
  ASSIGN_OR_RETURN(
      curves.predicted_base,
      Predict(plan.graph,
              planner::BaseSchedule(plan.graph, plan.capabilities.free_policy),
              plan.capabilities, plan.proto.base_peak_bytes()));
  return OkStatus();
}

Status PredictFromGraph(Store& store, const std::string& graph_id,
                        Curves& curves) {
  ASSIGN_OR_RETURN(v1::StepGraph proto, store.Get(LoadGraph, graph_id));
  ASSIGN_OR_RETURN(const planner::StepGraph graph, formats::ToPlanner(proto));
  ASSIGN_OR_RETURN(
      curves.predicted_base,
      Predict(graph, planner::BaseSchedule(graph, planner::FreePolicy::kEager),
              {}, proto.measured_peak_bytes()));
  return OkStatus();
}

Status Measure(Services& services, Database& db, const std::string& run_id,
               bool planned, std::shared_ptr<const RecordedStep>& step) {
  StatusOr<std::shared_ptr<const RecordedStep>> measured =
      services.steps.Get(db, run_id, planned);
  if (measured.ok()) step = *std::move(measured);
  return measured.status().code() == Code::kNotFound ? OkStatus()
                                                     : measured.status();
}

void DrawMeasured(const RecordedStep& step, const FoldWindow& window,
                  v1::Curve& curve) {
  curve = step.curve.Draw(step.step_ns, window);
  curve.set_step(step.step);
  curve.set_incomplete(step.incomplete);
}

}  // namespace

StatusOr<v1::Timeline> GetTimeline(Services& services,
                                   const v1::TimelineRequest& request) {
  v1::Run run;
  Curves curves;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(run, LoadNamedRun(db, request.run_id()));
    RETURN_IF_ERROR(
        Measure(services, db, run.run_id(), /*planned=*/true, curves.measured));
    return Measure(services, db, run.run_id(), /*planned=*/false,
                   curves.measured_base);
  }));
  v1::Timeline timeline;
  if (!run.plan_id().empty()) {
    RETURN_IF_ERROR(
        PredictFromPlan(services.store, run.plan_id(), curves, timeline));
  } else if (!run.graph_id().empty()) {
    RETURN_IF_ERROR(PredictFromGraph(services.store, run.graph_id(), curves));
  }

  const FoldWindow window{.from_ns = request.t0_ns(),
                          .to_ns = request.t1_ns(),
                          .columns = request.width_px() == 0
                                         ? kDefaultColumns
                                         : request.width_px()};
  RETURN_IF_ERROR(CheckWindow(window, curves.LongestNs()));
  // A curve that ends before the window begins is not shown.
  const auto shown = [&](int64_t step_ns) { return window.from_ns <= step_ns; };
  if (curves.predicted && shown(curves.predicted->step_ns)) {
    DrawCurves(*curves.predicted, window, *timeline.mutable_predicted());
  }
  if (curves.predicted_base && shown(curves.predicted_base->step_ns)) {
    DrawCurves(*curves.predicted_base, window,
               *timeline.mutable_predicted_base());
  }
  if (curves.measured && shown(curves.measured->step_ns)) {
    DrawMeasured(*curves.measured, window, *timeline.mutable_measured());
  }
  if (curves.measured_base && shown(curves.measured_base->step_ns)) {
    DrawMeasured(*curves.measured_base, window,
                 *timeline.mutable_measured_base());
  }
  return timeline;
}

}  // namespace reprise::server
