// SPDX-License-Identifier: Apache-2.0
//
// Compare: two runs or plans, side by side. Of a run its newest plan is
// compared; without one the captured step as it is; without that the traced step
// that was recorded or imported.
#include <map>
#include <tuple>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/compare.h"
#include "formats/convert/digest.h"
#include "server/service/calls/handlers.h"
#include "server/service/memory/evidence.h"
#include "server/service/memory/step_cache.h"
#include "server/service/planning/stored_plan.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

StatusOr<formats::PeakSide> SideOfStoredPlan(Store& store,
                                             const std::string& plan_id) {
  ASSIGN_OR_RETURN(const StoredPlan plan, LoadStoredPlan(store, plan_id));
  ASSIGN_OR_RETURN(const v1::StepGraph graph,
                   store.Get(LoadGraph, plan.proto.graph_id()));
  ASSIGN_OR_RETURN(
      formats::PeakSide side,
      formats::SideOfPlan(graph, plan.graph, plan.proto, plan.schedule,
                          plan.capabilities, plan.reserve_bytes));
  side.facts.set_id(plan_id);
  side.facts.set_name(graph.name().empty() ? plan_id : graph.name());
  return side;
}

StatusOr<formats::PeakSide> SideOfGraph(Store& store,
                                        const std::string& graph_id) {
  ASSIGN_OR_RETURN(const v1::StepGraph proto, store.Get(LoadGraph, graph_id));
  return formats::SideOfGraph(proto, graph_id);
}

// What a traced step held at its peak, by owner.
formats::PeakSide SideOfStep(const RecordedStep& step) {
  formats::PeakSide side;
  const size_t peak = step.curve.highest();
  const int64_t peak_bytes = step.curve.bytes(peak);
  side.facts.set_peak_of("measured");
  side.facts.set_peak_bytes(peak_bytes);
  side.facts.set_step_ns(step.step_ns);
  std::map<std::tuple<uint32_t, uint32_t, v1::Phase, bool, v1::Category>,
           formats::PeakPart>
      parts;
  int64_t rest = peak_bytes;
  step.lifetimes.VisitAlive(static_cast<uint32_t>(peak), [&](size_t index) {
    const Allocation& one = step.lifetimes.all()[index];
    const bool freed = one.died != Allocation::kNever;
    const v1::Category before = step.CategoryBefore(index);
    const auto [found, fresh] =
        parts.try_emplace({one.name, one.stack, one.phase, freed, before});
    formats::PeakPart& part = found->second;
    if (fresh) {
      const std::string& stack = step.Text(one.stack);
      const std::string& name = step.Text(one.name);
      part.category =
          before != v1::CATEGORY_UNSPECIFIED
              ? before
              : CategoryOf(EvidenceIn(stack, name, one.phase), freed);
      part.source = name.empty() ? stack.substr(0, stack.find('\n')) : name;
    }
    part.bytes += step.BytesOf(index);
    ++part.count;
    rest -= step.BytesOf(index);
  });
  for (auto& [key, part] : parts) side.parts.push_back(std::move(part));
  for (const planner::StaticPart& part : planner::DivideBytes(
           rest, step.before_parts, planner::Category::kUnknown)) {
    const auto category = static_cast<v1::Category>(part.category);
    const char* const name = category == v1::CATEGORY_UNKNOWN
                                 ? "(no record names it)"
                                 : "(static memory)";
    side.parts.push_back({.category = category,
                          .module = name,
                          .source = name,
                          .bytes = part.bytes,
                          .count = 1});
  }
  return side;
}

StatusOr<formats::PeakSide> SideOfRun(Services& services,
                                      const std::string& run_id) {
  v1::Run run;
  std::shared_ptr<const RecordedStep> step;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(run, LoadRun(db, run_id));
    if (!run.plan_id().empty() || !run.graph_id().empty()) return OkStatus();
    auto read = services.steps.Get(db, run_id, /*planned=*/false);
    if (read.status().code() == Code::kNotFound) {
      return NotFound(StrCat(
          "what was alive at the peak of run ",
          run.name().empty() ? run_id : run.name(),
          " is not known: it has no plan, and none of its steps was captured "
          "or traced"));
    }
    ASSIGN_OR_RETURN(step, std::move(read));
    return OkStatus();
  }));
  StatusOr<formats::PeakSide> side =
      step                     ? StatusOr<formats::PeakSide>(SideOfStep(*step))
      : !run.plan_id().empty() ? SideOfStoredPlan(services.store, run.plan_id())
                               : SideOfGraph(services.store, run.graph_id());
  if (!side.ok()) return side.status();
  side->facts.set_id(run_id);
  side->facts.set_name(run.name().empty() ? run_id : run.name());
  return side;
}

StatusOr<formats::PeakSide> SideOf(Services& services, const std::string& id) {
  const StatusOr<std::string> run = services.store.Get(ResolveRunId, id);
  if (run.ok()) return SideOfRun(services, *run);
  // A plan's id is 16 hex digits, which may begin the id of a run too.
  const std::string plan_id(IdIn(id));
  if (run.status().code() == Code::kNotFound &&
      formats::ParseHexId(plan_id).ok()) {
    auto plan = SideOfStoredPlan(services.store, plan_id);
    if (plan.ok() || plan.status().code() != Code::kNotFound) return plan;
    return NotFound(StrCat("there is no run and no plan ", plan_id));
  }
  return run.status();
}

}  // namespace

StatusOr<v1::Comparison> CompareRuns(Services& services,
                                     const v1::CompareRequest& request) {
  ASSIGN_OR_RETURN(const formats::PeakSide a, SideOf(services, request.a()));
  ASSIGN_OR_RETURN(const formats::PeakSide b, SideOf(services, request.b()));
  return formats::Compare(a, b);
}

}  // namespace reprise::server
