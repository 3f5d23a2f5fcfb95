// SPDX-License-Identifier: Apache-2.0
//
// reprise sweep GRAPH: what each budget costs, from the peak without a plan
// down to the smallest budget in which anything fits.
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/core/plan_options.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/verbs/file_plan.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/capabilities.h"
#include "formats/convert/digest.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/refusal.h"
#include "formats/convert/sentence.h"
#include "planner/planner.h"

namespace reprise::cli {
namespace {

v1::TradeoffPoint ToProto(const planner::CurvePoint& from,
                          const planner::StepGraph& graph,
                          const std::string& inferred) {
  v1::TradeoffPoint to;
  to.set_inferred(inferred);
  to.set_budget_bytes(from.budget_bytes);
  to.set_feasible(from.feasible);
  to.set_peak_bytes(from.peak_bytes);
  to.set_overhead(from.overhead);
  to.set_bound(from.bound);
  to.set_time_ns(from.time_ns);
  if (!from.feasible) {
    *to.mutable_infeasible() = formats::ToProto(from.infeasible, graph);
  }
  return to;
}

class SweepCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb =
        line.AddVerb("sweep", "Show what each budget costs: the trade-off");
    verb.Add("GRAPH", graph_, "A step graph file, or the id of a graph",
             {.required = true, .completes = Completes::kFiles});
    verb.Add("--points", point_count_, "Number of budgets, 2 to 200",
             {.shows_default = true, .range = {{2, 200}}});
    flags_.Define(verb, /*with_strategy=*/false);
    verb.Footer(
        "With --json: one line per budget, as it is found.\n\n"
        "Example:\n  reprise sweep resnet.graph.json");
  }

  int Run(const Globals& globals, Console& console) override {
    globals_ = &globals;
    const bool is_file = Exists(graph_) || !formats::ParseHexId(graph_).ok();
    const auto options = flags_.Check(is_file);
    if (!options.ok()) return console.UsageError(options.status().message());
    options_ = *options;
    const Status status =
        is_file ? SweepFile(console) : SweepStored(globals, console);
    if (!status.ok()) return console.Error(status);
    if (points_.empty()) {
      return CatchInterrupt::Asked()
                 ? console.Fail(kInterrupted, "interrupted before any point")
                 : console.Fail(kTimedOut, "no point within --time-limit");
    }
    if (!globals.json) {
      console.Raw(CurveTable(points_));
      if (const std::string& why = points_.front().inferred(); !why.empty()) {
        console.Line(StrCat(
            "  an estimate, nothing of it is proven of the step: ", why));
      }
      if (CatchInterrupt::Asked()) {
        console.Line("  interrupted: the points so far");
      }
    }
    return kDone;
  }

 private:
  // Both append to points_.
  Status SweepFile(Console& console) {
    ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(graph_));
    ASSIGN_OR_RETURN(const planner::StepGraph graph,
                     formats::ToPlanner(file.graph));
    const std::string inferred = formats::WhyInferred(file.graph);
    planner::Request request;
    ASSIGN_OR_RETURN(request.capabilities,
                     formats::ToPlanner(options_.capabilities));
    options_.Apply(request);
    const CatchInterrupt catch_interrupt;
    Watch watch(console, options_.time_limit);
    watch.Attach(request);
    ASSIGN_OR_RETURN([[maybe_unused]] const auto curve,
                     planner::Sweep(graph, request, point_count_,
                                    [&](const planner::CurvePoint& point) {
                                      Got(*globals_, console,
                                          ToProto(point, graph, inferred));
                                    }));
    // Later points may improve earlier ones, so the table shows the final curve.
    points_.clear();
    for (const planner::CurvePoint& point : curve) {
      points_.push_back(ToProto(point, graph, inferred));
    }
    return OkStatus();
  }

  Status SweepStored(const Globals& globals, Console& console) {
    ASSIGN_OR_RETURN(const ServerClient client,
                     ServerClient::ConnectOrStart(globals));
    v1::SweepRequest request;
    request.set_graph_id(graph_);
    options_.Apply(request);
    request.set_points(static_cast<uint32_t>(point_count_));
    return client.Sweep(request, [&](const v1::TradeoffPoint& point) {
      Got(globals, console, point);
    });
  }

  void Got(const Globals& globals, Console& console, v1::TradeoffPoint point) {
    if (globals.json) {
      console.Line(ProtoToJson(point));
      console.Flush();
    } else {
      console.Progress(StrCat("planning  ", points_.size() + 1, " of ",
                              point_count_, " budgets  ",
                              FormatBytes(point.budget_bytes())));
    }
    // An improved point is sent again.
    for (v1::TradeoffPoint& known : points_) {
      if (known.budget_bytes() != point.budget_bytes()) continue;
      known = std::move(point);
      return;
    }
    points_.push_back(std::move(point));
  }

  std::string graph_;
  PlanningFlags flags_{"60s"};
  PlanningOptions options_;
  int point_count_ = 21;
  const Globals* globals_ = nullptr;
  std::vector<v1::TradeoffPoint> points_;
};

}  // namespace

std::unique_ptr<Command> MakeSweepCommand() {
  return std::make_unique<SweepCommand>();
}

}  // namespace reprise::cli
