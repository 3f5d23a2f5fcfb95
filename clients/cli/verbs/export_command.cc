// SPDX-License-Identifier: Apache-2.0
//
// reprise export RUN|PLAN|GRAPH: writes a step in a format for common viewers,
// or says the setting of another tool that is nearest to a plan. Files are
// evaluated here; runs and plans come from the server.
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/verbs/file_plan.h"
#include "formats/convert/capabilities.h"
#include "formats/convert/digest.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "formats/convert/plan_proto.h"
#include "formats/export/settings.h"
#include "formats/export/timeline.h"

namespace reprise::cli {
namespace {

constexpr auto kPredicted = "predicted";
constexpr auto kPredictedBase = "predicted without a plan";
constexpr auto kMeasured = "measured";
constexpr auto kMeasuredBase = "measured without a plan";
constexpr int64_t kMostFileBytes = int64_t{1} << 30;

using Timelines = std::vector<formats::ExportTimeline>;

// A plan with all that its steps can be computed from.
struct PlannedStep {
  v1::Plan plan = {};
  planner::StepGraph graph = {};
  planner::Capabilities capabilities = {};
  planner::Schedule schedule = {};  // empty: no plan fits
  int64_t reserve_bytes = 0;        // held back, beside what the evaluator says
};

class ExportCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "export", "Write a step as a report, for Perfetto, or as settings");
    verb.Add("WHAT", what_,
             "A run id (or its beginning, or \"latest\"), a plan id, or a "
             "file: step graph or plan",
             {.required = true, .completes = Completes::kRuns});
    verb.Add("--format,-f", format_,
             "chrome: JSON for Perfetto and chrome://tracing; "
             "html: one file for any browser, without network",
             {.shows_default = true, .one_of = {"chrome", "html"}});
    verb.Add("--for", tool_,
             "Say the setting of this tool's own checkpointing that is nearest "
             "to a plan, and what it costs beside the plan; writes no file",
             {.one_of = formats::SettingTools()});
    verb.Add("--out,-o", out_, "The file (named after WHAT)",
             {.completes = Completes::kFiles});
    verb.Flag("--force,!--no-force", force_, "Replace an existing file");
    verb.Footer(
        "Example:\n  reprise export latest --format html\n"
        "  reprise export latest --format chrome -o run.trace.json\n"
        "  reprise export latest --for torchtitan");
  }

  int Run(const Globals& globals, Console& console) override {
    if (!tool_.empty()) return RunSetting(globals, console);
    if (out_.empty()) out_ = DefaultPath();
    const Status writable = CheckWritable(out_, force_);
    if (LooksLikeFile(what_)) {
      const StatusOr<Timelines> all = OfFile();
      if (!all.ok()) return console.Error(all.status());
      if (!writable.ok()) return console.Error(writable);
      return Write(*all, globals, console);
    }
    if (!writable.ok()) return console.Error(writable);
    const auto client = ServerClient::ConnectOrStart(globals);
    if (!client.ok()) return console.ConnectError(client.status());
    const StatusOr<Timelines> all = OfStored(*client);
    return all.ok() ? Write(*all, globals, console)
                    : console.Error(all.status());
  }

 private:
  StatusOr<Timelines> OfGraphFile(const std::string& path) const {
    ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(path));
    ASSIGN_OR_RETURN(const planner::StepGraph graph,
                     formats::ToPlanner(file.graph));
    Timelines all;
    RETURN_IF_ERROR(AddPredicted(graph, {}, {}, 0, 0, all));
    return all;
  }

  StatusOr<PlannedStep> PlanOfFile(const std::string& text) const {
    ASSIGN_OR_RETURN(const formats::PlanText read, ReadPlan(what_, text));
    if (!read.plan.feasible()) {
      return FailedPrecondition(
          StrCat(what_,
                 ": no plan fits its budget, so there is no step to show; "
                 "export the step graph for the one without a plan"));
    }
    ASSIGN_OR_RETURN(const std::string graph_path,
                     FindGraphOf(what_, read.graph));
    ASSIGN_OR_RETURN(CheckedPlan checked,
                     CheckPlanFile(what_, read.plan, graph_path));
    return PlannedStep{.plan = read.plan,
                       .graph = std::move(checked.graph),
                       .capabilities = checked.capabilities,
                       .schedule = std::move(checked.schedule),
                       .reserve_bytes = read.plan.peak_bytes() -
                                        checked.report.evaluation.peak_bytes};
  }

  // Returns the text of a file that is a plan; empty: it is a step graph.
  StatusOr<std::string> TextOfPlan() const {
    if (what_.ends_with(".pb")) return std::string();
    ASSIGN_OR_RETURN(std::string text, ReadFile(what_, kMostFileBytes));
    const StatusOr<formats::JsonScan> scan = formats::ScanJson(text);
    if (!scan.ok()) {
      return Status(scan.status().code(),
                    StrCat(what_, ": ", scan.status().message()));
    }
    const bool is_plan = scan->format.starts_with("reprise.plan/") ||
                         (!scan->has_format && scan->has_schedule);
    return is_plan ? std::move(text) : std::string();
  }

  StatusOr<Timelines> OfFile() {
    ASSIGN_OR_RETURN(const std::string text, TextOfPlan());
    if (text.empty()) return OfGraphFile(what_);
    Timelines all;
    ASSIGN_OR_RETURN(const PlannedStep step, PlanOfFile(text));
    RETURN_IF_ERROR(AddPlanned(step, all));
    return all;
  }

  StatusOr<Timelines> OfStored(const ServerClient& client) {
    Timelines all;
    const auto run = client.GetRun(what_);
    if (!run.ok()) {
      ASSIGN_OR_RETURN(const PlannedStep step,
                       PlanWithoutRun(client, run.status()));
      RETURN_IF_ERROR(AddPlanned(step, all));
      return all;
    }
    name_ = run->name();
    sentence_ = run->verdict().sentence();
    v1::StepGraph proto;
    planner::StepGraph graph;
    if (!run->graph_id().empty()) {
      ASSIGN_OR_RETURN(proto, client.GetGraph(run->graph_id()));
      ASSIGN_OR_RETURN(graph, formats::ToPlanner(proto));
    }
    for (const bool planned : {true, false}) {
      formats::MeasuredTimeline measured(planned ? kMeasured : kMeasuredBase);
      const Status read = client.ReadStep(
          run->run_id(), planned,
          [&](const v1::StepPart& part) { measured.Add(part); });
      if (read.code() == Code::kNotFound) continue;
      RETURN_IF_ERROR(read);
      all.push_back(measured.Finish());
      if (format_ == "html") {
        ASSIGN_OR_RETURN(
            all.back().at_peak,
            client.GetMemory(run->run_id(), planned, formats::kMostRows));
      }
    }
    if (!run->plan_id().empty()) {
      ASSIGN_OR_RETURN(const PlannedStep step,
                       StoredPlan(client, run->plan_id()));
      RETURN_IF_ERROR(AddPlanned(step, all));
    } else if (!run->graph_id().empty()) {
      RETURN_IF_ERROR(
          AddPredicted(graph, {}, {}, 0, proto.measured_peak_bytes(), all));
    }
    if (all.empty()) {
      return NotFound(StrCat("run ", run->run_id(),
                             " has neither a traced step nor a step graph; ask "
                             "for one with `reprise window`"));
    }
    return all;
  }

  Status AddPredicted(const planner::StepGraph& graph,
                      const planner::Schedule& schedule,
                      const planner::Capabilities& capabilities,
                      int64_t reserve_bytes, int64_t base_peak_bytes,
                      Timelines& out) const {
    if (!schedule.empty()) {
      ASSIGN_OR_RETURN(out.emplace_back(),
                       formats::PredictedTimeline(kPredicted, graph, schedule,
                                                  capabilities, reserve_bytes));
    }
    const planner::Schedule base =
        planner::BaseSchedule(graph, capabilities.free_policy);
    ASSIGN_OR_RETURN(formats::ExportTimeline timeline,
                     formats::PredictedTimeline(kPredictedBase, graph, base,
                                                capabilities, 0));
    // Adds what was measured beyond the model to every point.
    const int64_t missing = base_peak_bytes - timeline.PeakBytes();
    if (missing > 0) {
      timeline.static_bytes += missing;
      for (formats::ExportPoint& point : timeline.curve) point.bytes += missing;
    }
    out.push_back(std::move(timeline));
    return OkStatus();
  }

  Status AddPlanned(const PlannedStep& step, Timelines& out) {
    if (sentence_.empty()) sentence_ = step.plan.sentence();
    budget_bytes_ = step.plan.budget_bytes();
    return AddPredicted(step.graph, step.schedule, step.capabilities,
                        step.reserve_bytes, step.plan.base_peak_bytes(), out);
  }

  StatusOr<PlannedStep> StoredPlan(const ServerClient& client,
                                   const std::string& plan_id) const {
    ASSIGN_OR_RETURN(const v1::Explanation explained, client.Explain(plan_id));
    PlannedStep step;
    step.plan = explained.plan();
    ASSIGN_OR_RETURN(const v1::StepGraph proto,
                     client.GetGraph(step.plan.graph_id()));
    ASSIGN_OR_RETURN(step.graph, formats::ToPlanner(proto));
    ASSIGN_OR_RETURN(step.capabilities,
                     formats::ToPlanner(explained.capabilities()));
    if (step.plan.feasible()) {
      ASSIGN_OR_RETURN(step.schedule,
                       formats::ToSchedule(step.plan, step.graph));
      ASSIGN_OR_RETURN(
          const planner::Evaluation evaluation,
          planner::Evaluate(step.graph, step.schedule, step.capabilities));
      step.reserve_bytes =
          std::max<int64_t>(0, step.plan.peak_bytes() - evaluation.peak_bytes);
    }
    return step;
  }

  // Returns the plan with this id, of which there is no run.
  StatusOr<PlannedStep> PlanWithoutRun(const ServerClient& client,
                                       const Status& no_run) const {
    if (no_run.code() != Code::kNotFound || !formats::ParseHexId(what_).ok()) {
      return no_run;
    }
    StatusOr<PlannedStep> step = StoredPlan(client, what_);
    if (step.status().code() != Code::kNotFound) return step;
    return NotFound(
        StrCat(what_, ": there is no such run or plan on this server"));
  }

  // ---- Settings of other tools ----

  StatusOr<PlannedStep> PlanToFollow(const Globals& globals) const {
    if (LooksLikeFile(what_)) {
      ASSIGN_OR_RETURN(const std::string text, TextOfPlan());
      if (!text.empty()) return PlanOfFile(text);
      return InvalidArgument(
          StrCat(what_, ": is a step graph; make its plan first: reprise plan ",
                 what_, " --budget BUDGET"));
    }
    ASSIGN_OR_RETURN(const ServerClient client,
                     ServerClient::ConnectOrStart(globals));
    const auto run = client.GetRun(what_);
    if (!run.ok()) return PlanWithoutRun(client, run.status());
    if (!run->plan_id().empty()) return StoredPlan(client, run->plan_id());
    return FailedPrecondition(
        StrCat("run ", run->run_id(), " has no plan; make one: reprise plan ",
               run->graph_id().empty() ? "GRAPH" : run->graph_id(),
               " --budget BUDGET"));
  }

  int RunSetting(const Globals& globals, Console& console) const {
    if (!out_.empty()) {
      return console.UsageError("--for: writes no file; leave out --out");
    }
    const StatusOr<PlannedStep> step = PlanToFollow(globals);
    if (!step.ok()) return console.Error(step.status());
    const auto setting = formats::NearestSetting(
        tool_, step->graph, step->capabilities,
        step->plan.budget_bytes() - step->reserve_bytes);
    if (!setting.ok()) return console.Error(setting.status());
    const v1::Plan& plan = step->plan;
    const int64_t peak_bytes = setting->peak_bytes + step->reserve_bytes;
    const double base_ns = static_cast<double>(plan.base_time_ns());
    const double overhead =
        base_ns > 0 ? static_cast<double>(setting->time_ns) / base_ns - 1 : 0;
    const int code = setting->fits ? kDone : kNoPlan;
    if (globals.json) {
      const nlohmann::ordered_json json = {
          {"for", tool_},
          {"fits", setting->fits},
          {"setting", setting->text},
          {"what", setting->what},
          {"peak_bytes", peak_bytes},
          {"overhead", overhead},
          {"budget_bytes", plan.budget_bytes()},
          {"plan_peak_bytes", plan.peak_bytes()},
          {"plan_overhead", plan.overhead()}};
      console.Line(json.dump(-1, ' ', false,
                             nlohmann::ordered_json::error_handler_t::replace));
      return code;
    }
    const std::string budget = FormatBytes(plan.budget_bytes());
    console.Line(
        StrCat(setting->fits ? "" : "No setting fits: ", tool_, " ",
               setting->what, ": peak ", FormatBytes(peak_bytes), " of ",
               budget, ", ", FormatPercent(overhead, true), " estimated"),
        setting->fits ? Tone::kGood : Tone::kBad);
    if (plan.feasible()) {
      console.Line(StrCat("  the plan itself: peak ",
                          FormatBytes(plan.peak_bytes()), ", ",
                          FormatPercent(plan.overhead(), true)));
    }
    if (!setting->text.empty()) console.Line("");
    std::istringstream lines(setting->text);
    for (std::string line; std::getline(lines, line);) console.Line(line);
    return code;
  }

  std::string DefaultPath() const {
    std::string stem = what_;
    for (const char* ending : {".json", ".pb", ".graph", ".plan"}) {
      if (stem.ends_with(ending)) {
        stem.resize(stem.size() - std::string(ending).size());
      }
    }
    return stem + (format_ == "chrome" ? ".trace.json" : ".report.html");
  }

  int Write(const Timelines& all, const Globals& globals, Console& console) {
    const std::string name = name_.empty() ? what_ : name_;
    const std::string text =
        format_ == "chrome"
            ? formats::WriteChromeTrace(name, all)
            : formats::WriteHtmlReport({.name = name,
                                        .sentence = sentence_,
                                        .budget_bytes = budget_bytes_},
                                       all);
    const Status written = WriteFile(out_, text, force_);
    if (!written.ok()) return console.Error(written);
    if (globals.json) {
      std::vector<std::string> titles;
      for (const auto& one : all) titles.push_back(one.title);
      const nlohmann::ordered_json json = {
          {"wrote", out_},
          {"format", format_},
          {"steps", titles},
          {"peak_bytes", all.front().PeakBytes()}};
      console.Line(json.dump(-1, ' ', false,
                             nlohmann::ordered_json::error_handler_t::replace));
      return kDone;
    }
    for (const auto& one : all) {
      console.Line(StrCat("  ", one.title, ": peak ",
                          FormatBytes(one.PeakBytes()), " in ",
                          FormatDuration(one.duration_ns)));
    }
    console.Line(StrCat("  wrote ", out_));
    console.Note(
        format_ == "html"
            ? "\nNext:  open it in a browser, or send it"
            : "\nNext:  open it at ui.perfetto.dev or chrome://tracing");
    return kDone;
  }

  std::string what_;
  std::string format_ = "chrome";
  std::string tool_;
  std::string out_;
  bool force_ = false;
  std::string name_;
  // Of the plan or run, for a report.
  std::string sentence_;
  int64_t budget_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeExportCommand() {
  return std::make_unique<ExportCommand>();
}

}  // namespace reprise::cli
