// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/show_stored.h"

#include <algorithm>
#include <string_view>

#include "base/str_cat.h"
#include "clients/cli/core/console.h"
#include "clients/cli/verbs/peak_report.h"
#include "clients/cli/verbs/run_facts.h"
#include "formats/convert/digest.h"
#include "formats/convert/graph_names.h"

namespace reprise::cli {
namespace {

constexpr int kShownDecisions = 10;

const char* StateWord(v1::RunState state) {
  switch (state) {
    case v1::RUN_STATE_RUNNING:
      return "running";
    case v1::RUN_STATE_FINISHED:
      return "finished";
    case v1::RUN_STATE_KILLED:
      return "killed";
    case v1::RUN_STATE_FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

// Prints whose clock the times of the ops are of; nothing where nobody asked
// for kernels.
void PrintTiming(const std::string& timing, Console& console) {
  constexpr std::string_view kHost = "host: ";
  if (timing == "kernels") {
    console.Line("  an op takes as long as its kernels");
  } else if (timing.compare(0, kHost.size(), kHost) == 0) {
    console.Line(
        StrCat("  ops are timed by the host: ", timing.substr(kHost.size())));
  }
}

// Prints what is alive at the peak of a run or plan by category, as
// `reprise diff` and the page do.
void PrintCategories(const std::string& id, const ServerClient& client,
                     Console& console) {
  const auto same = client.Compare(id, id);
  if (!same.ok()) return;  // nothing was captured or traced
  const auto known = [](const v1::ComparedPart& part) {
    return part.category() != v1::CATEGORY_UNKNOWN;
  };
  if (std::none_of(same->categories().begin(), same->categories().end(),
                   known)) {
    return;
  }
  console.Line(StrCat("\nBY CATEGORY, ", same->a().peak_of(), " (",
                      FormatBytes(same->a().peak_bytes()), ")"));
  for (const v1::ComparedPart& part : same->categories()) {
    console.Line(
        StrCat("  ", Right(FormatBytes(part.a_bytes()), 11), "  ",
               formats::WordOf(formats::kCategoryTexts, part.category())));
  }
}

// Prints what each decision saves, and what is alive at the plan's peak.
void PrintExplanation(const v1::Explanation& explanation, Console& console) {
  int64_t saved_bytes = 0;
  int64_t recomputed_bytes = 0;
  int recomputed = 0;
  for (const v1::StorageExplanation& s : explanation.storages()) {
    if (s.decision() == v1::DECISION_RECOMPUTE) {
      recomputed_bytes += s.bytes();
      ++recomputed;
    } else {
      saved_bytes += s.bytes();
    }
  }
  console.Line(StrCat("  recomputes ", recomputed,
                      recomputed == 1 ? " storage (" : " storages (",
                      FormatBytes(recomputed_bytes), "), keeps ",
                      explanation.storages_size() - recomputed, " (",
                      FormatBytes(saved_bytes), ")"));
  PrintTiming(explanation.timing(), console);
  console.Raw(AtPeakText(explanation, kShownDecisions));
}

void PrintVerdict(const v1::Verdict& v, Console& console) {
  if (!v.sentence().empty()) {
    console.Line(v.sentence(), ToneOf(v));
  }
  const auto row = [&](const char* name, int64_t peak, int64_t step) {
    if (peak <= 0 && step <= 0) return;
    std::string line = StrCat("  ", Left(name, 12));
    if (peak > 0) line += StrCat("peak ", Left(FormatBytes(peak), 11));
    // Of a run that ended before a planned step was timed there is none.
    if (step > 0) line += StrCat("step ", FormatDuration(step));
    console.Line(line);
  };
  row("no plan", v.base_peak_bytes(), v.base_step_ns());
  row("predicted", v.predicted_peak_bytes(), v.predicted_step_ns());
  row("measured", v.measured_peak_bytes(), v.measured_step_ns());
  if (v.planned_steps() > 0) {
    console.Line(StrCat(
        "  ", v.planned_steps(),
        v.planned_steps() == 1 ? " step under the plan, "
                               : " steps under the plan, ",
        v.mismatches(), v.mismatches() == 1 ? " mismatch: " : " mismatches: ",
        v.validated() ? "budget and bits validated" : "not validated"));
  }
}

int ShowRun(v1::Run run, const ServerClient& client, const Globals& globals,
            Console& console) {
  const std::string path = "/runs/" + run.run_id();
  const auto moments = client.GetMoments(run.run_id());
  // A server of an earlier release does not have this method.
  if (!moments.ok() && moments.status().code() != Code::kUnimplemented) {
    return console.Error(moments.status());
  }
  if (globals.json) {
    if (moments.ok()) *run.mutable_moments() = moments->moments();
    console.Line(ProtoToJson(run));
  } else {
    std::string head = StrCat("run ", run.run_id());
    if (!run.name().empty()) head += "  " + run.name();
    // "out of memory", "refused, trained on": what the page says. A server of
    // an earlier release knows the state alone.
    const std::string ending =
        run.ending().empty() ? StateWord(run.state()) : run.ending();
    console.Line(StrCat(
        head, "  ", ending, "  ", run.steps(),
        run.steps() == 1 ? " step on " : " steps on ", run.host(),
        // What was imported had no process here.
        run.imported().empty() ? StrCat(", pid ", run.pid()) : std::string()));
    PrintVerdict(run.verdict(), console);
    if (moments.ok()) PrintMoments(*moments, console);
    if (run.dropped() > 0 || run.lost_chunks() > 0) {
      console.Line(StrCat("  ", run.dropped(), " records dropped, ",
                          run.lost_chunks(), " chunks lost"));
    }
    if (run.stored().refused_bytes() > 0) {
      console.Line(StrCat(
          "  ", FormatBytes(run.stored().refused_bytes()),
          " came when the run had used its quota in the store and were not "
          "stored: ",
          run.stored().refused_records(),
          " records; `--max-run-bytes` of the "
          "server sets it"));
    }
    if (!run.plan_id().empty()) {
      const auto explanation = client.Explain(run.plan_id());
      if (explanation.ok()) {
        PrintExplanation(*explanation, console);
      } else {
        console.Note(StrCat("  plan ", run.plan_id(), " cannot be explained: ",
                            explanation.status().message()));
      }
    }
    if (run.plan_id().empty()) {
      const Status printed = PrintMeasuredPeak(run, client, console);
      if (!printed.ok()) {
        console.Note(
            StrCat("  the traced step cannot be read: ", printed.message()));
      }
    }
    PrintCategories(run.run_id(), client, console);
    if (run.has_window() || run.sessions_size() > 0) {
      console.Line("\nTHE JOB");
      PrintWindow(run, console);
      PrintCapabilities(run, console);
    }
    console.Line(StrCat("  page  ", client.endpoint().Page(
                                        path, console.results_on_terminal())));
  }
  return kDone;
}

}  // namespace

int ShowStored(const std::string& id, const ServerClient& client,
               const Globals& globals, Console& console) {
  const auto run = client.GetRun(id);
  if (run.ok()) return ShowRun(*run, client, globals, console);
  if (run.status().code() != Code::kNotFound || !formats::ParseHexId(id).ok()) {
    return console.Error(run.status());
  }
  const auto explanation = client.Explain(id);
  if (!explanation.ok()) {
    return explanation.status().code() == Code::kNotFound
               ? console.Error(NotFound(StrCat(
                     id, ": there is no such run or plan on this server")))
               : console.Error(explanation.status());
  }
  if (globals.json) {
    console.Line(ProtoToJson(*explanation));
    return kDone;
  }
  const v1::Plan& plan = explanation->plan();
  console.Line(plan.sentence(), plan.feasible() ? Tone::kGood : Tone::kBad);
  PrintExplanation(*explanation, console);
  PrintCategories(id, client, console);
  return kDone;
}

}  // namespace reprise::cli
