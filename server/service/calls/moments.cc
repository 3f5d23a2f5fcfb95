// SPDX-License-Identifier: Apache-2.0
//
// GetMoments: the stored moments of a run, with what can be derived about them
// (moment_view.h) and their sentences.
#include <algorithm>
#include <optional>

#include "base/str_cat.h"
#include "formats/convert/graph_proto.h"
#include "server/service/calls/handlers.h"
#include "server/service/memory/moment_view.h"
#include "server/service/planning/stored_plan.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

constexpr int64_t kMostMoments = 20;
constexpr uint32_t kDefaultOps = 20;
constexpr uint32_t kDefaultStorages = 100;
constexpr uint32_t kMost = 1000;

// A graph, and the schedule that its step followed.
struct Walk {
  planner::StepGraph graph;
  planner::Schedule schedule;
  bool planned = false;
};

// Nothing if no graph was captured, or if what is stored is inconsistent.
std::optional<Walk> LoadWalk(Database& db, const v1::Moment& moment,
                             const std::string& newest_graph) {
  const std::string& id =
      moment.graph_id().empty() ? newest_graph : moment.graph_id();
  if (id.empty()) return std::nullopt;
  const auto proto = LoadGraph(db, id);
  if (!proto.ok()) return std::nullopt;
  if (!moment.plan_id().empty()) {
    auto row = LoadPlan(db, moment.plan_id());
    if (row.ok() && row->plan.feasible()) {
      auto plan =
          WalkPlan(*proto, std::move(row->plan), row->request.capabilities());
      if (plan.ok()) {
        return Walk{.graph = std::move(plan->graph),
                    .schedule = std::move(plan->schedule),
                    .planned = true};
      }
    }
  }
  auto graph = formats::ToPlanner(*proto);
  if (!graph.ok()) return std::nullopt;
  Walk walk{.graph = *std::move(graph), .schedule = {}};
  walk.schedule =
      planner::BaseSchedule(walk.graph, planner::FreePolicy::kProgram);
  return walk;
}

// Returns whether the job had reported the step before it died.
StatusOr<bool> WasReported(Database& db, const MomentRow& row) {
  ASSIGN_OR_RETURN(
      const auto found,
      db.First("SELECT 1 FROM steps WHERE session_id = ?1 AND run_id ="
               " (SELECT run_id FROM sessions WHERE session_id = ?1)"
               " AND step = ?2 LIMIT 1",
               row.session_id, row.moment.step()));
  return found.has_value();
}

const char* PhaseWords(v1::Phase phase) {
  switch (phase) {
    case v1::PHASE_FORWARD:
      return ", in the forward";
    case v1::PHASE_BACKWARD:
      return ", in the backward";
    case v1::PHASE_OPTIMIZER:
      return ", in the optimizer";
    default:
      return "";
  }
}

std::string OpWords(const v1::ShownMoment& shown) {
  if (shown.ops().empty() || !shown.ops().rbegin()->under_way()) return "";
  const v1::LastOp& op = *shown.ops().rbegin();
  std::string text = ", at ";
  if (op.has_op()) text += StrCat("op ", op.op(), " ");
  text += op.name();
  if (!op.module().empty()) text += StrCat(" (", op.module(), ")");
  return text;
}

std::string Sentence(const v1::ShownMoment& shown, bool finished) {
  const v1::Moment& moment = shown.moment();
  std::string text;
  if (moment.reason() == v1::MOMENT_REASON_KILLED) {
    text = StrCat(finished ? "Killed after step " : "Killed in step ",
                  moment.step());
  } else {
    text = StrCat("Out of memory in step ", moment.step());
  }
  if (!finished) text += StrCat(PhaseWords(moment.phase()), OpWords(shown));
  if (moment.asked_bytes() > 0) {
    text += StrCat(", asking for ", FormatBytes(moment.asked_bytes()));
  }
  if (moment.live_bytes() > 0) {
    text += StrCat(": ", FormatBytes(moment.live_bytes()), " alive");
  }
  return text + ".";
}

std::string GraphSource(const Walk& walk, const MomentView& view) {
  if (view.finished) return "what a step leaves behind, from its step graph";
  std::string along = walk.planned ? "from the step graph, along the plan"
                                   : "from the captured step, without a plan";
  if (!view.guessed) return along;
  return along +
         "; which op was under way is not known: shown is where most is alive";
}

void PutStorages(std::vector<v1::HeldStorage> storages, uint32_t most,
                 v1::Moment& moment) {
  std::stable_sort(storages.begin(), storages.end(),
                   [](const v1::HeldStorage& a, const v1::HeldStorage& b) {
                     return a.bytes() > b.bytes();
                   });
  moment.clear_storages();
  for (size_t i = 0; i < storages.size(); ++i) {
    if (i < most) {
      *moment.add_storages() = std::move(storages[i]);
    } else {
      moment.set_more_storages(moment.more_storages() + 1);
      moment.set_more_bytes(moment.more_bytes() + storages[i].bytes());
    }
  }
}

Status FillMoment(Database& db, const MomentRow& row,
                  const std::string& graph_id, uint32_t most_ops,
                  uint32_t most_storages, v1::ShownMoment& shown) {
  const bool killed = row.moment.reason() == v1::MOMENT_REASON_KILLED;
  v1::Moment& moment = *shown.mutable_moment();
  ASSIGN_OR_RETURN(const bool reported, WasReported(db, row));
  const bool finished =
      killed && reported && moment.phase() == v1::PHASE_UNSPECIFIED;
  std::vector<v1::HeldStorage> storages(moment.storages().begin(),
                                        moment.storages().end());
  ASSIGN_OR_RETURN(MomentView view, ViewFromRecords(db, row, most_ops));
  std::string source;
  if (view.traced) source = "from the records of the step, which was traced";
  const bool wants_memory = killed && !view.has_memory;
  if (!view.traced || wants_memory) {
    const auto walk = LoadWalk(db, moment, graph_id);
    if (walk) {
      MomentView along = ViewFromGraph(walk->graph, walk->schedule, moment,
                                       finished, most_ops);
      // After an exception the memory is known from the job; a guessed op adds
      // nothing.
      const bool helps = killed || !along.guessed;
      if (helps) {
        const std::string from = GraphSource(*walk, along);
        source = view.traced ? StrCat("ops ", source, "; memory ", from) : from;
        if (!view.traced) view.ops = std::move(along.ops);
        if (wants_memory) {
          view.storages = std::move(along.storages);
          view.live_bytes = along.live_bytes;
          view.has_memory = along.has_memory;
        }
      }
    }
  }
  if (killed) {
    storages = std::move(view.storages);
    if (moment.live_bytes() == 0) moment.set_live_bytes(view.live_bytes);
  } else {
    source = StrCat("memory as the job found it",
                    view.ops.empty() ? "" : StrCat("; ops ", source));
  }
  if (source.empty()) {
    source =
        "nothing is known of the step's ops: it was neither traced nor under "
        "a plan, and none was captured; `reprise window` traces steps";
  }
  PutStorages(std::move(storages), most_storages, moment);
  for (v1::LastOp& op : view.ops) *shown.add_ops() = std::move(op);
  shown.set_source(source);
  shown.set_sentence(Sentence(shown, finished));
  return OkStatus();
}

}  // namespace

StatusOr<v1::GetMomentsResponse> GetMoments(
    Services& services, const v1::GetMomentsRequest& request) {
  const auto limit = [](uint32_t asked, uint32_t otherwise) {
    return asked == 0 ? otherwise : std::min(asked, kMost);
  };
  const uint32_t most_ops = limit(request.last_ops(), kDefaultOps);
  const uint32_t most_storages =
      limit(request.most_storages(), kDefaultStorages);
  v1::GetMomentsResponse response;
  RETURN_IF_ERROR(services.store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const v1::Run run, LoadNamedRun(db, request.run_id()));
    ASSIGN_OR_RETURN(std::vector<MomentRow> rows,
                     LoadMoments(db, run.run_id(), kMostMoments));
    for (MomentRow& row : rows) {
      v1::ShownMoment& shown = *response.add_moments();
      *shown.mutable_moment() = row.moment;
      shown.set_session_id(row.session_id);
      shown.set_rank(row.rank);
      if (row.moment.at_ns() > 0) {
        shown.set_at_ns(row.moment.at_ns() + row.monotonic_to_unix_ns);
      }
      RETURN_IF_ERROR(
          FillMoment(db, row, run.graph_id(), most_ops, most_storages, shown));
    }
    return OkStatus();
  }));
  return response;
}

}  // namespace reprise::server
