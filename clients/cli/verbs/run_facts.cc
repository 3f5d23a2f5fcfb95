// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/run_facts.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/console.h"
#include "formats/convert/graph_names.h"
#include "formats/export/timeline.h"

namespace reprise::cli {
namespace {

constexpr size_t kShown = 10;

struct Group {
  int64_t bytes = 0;
  int64_t count = 0;
};

// Returns what was allocated in the step and is alive at its peak, by name.
std::vector<std::pair<std::string, Group>> AliveAtPeak(
    const formats::ExportTimeline& timeline, int64_t& before_bytes) {
  int64_t live = timeline.static_bytes;
  int64_t peak = live;
  size_t until = 0;
  for (size_t i = 0; i < timeline.events.size(); ++i) {
    live += timeline.events[i].bytes;
    if (live > peak) {
      peak = live;
      until = i + 1;
    }
  }
  std::unordered_map<uint64_t, std::pair<int64_t, uint32_t>> alive;
  before_bytes = timeline.static_bytes;
  for (size_t i = 0; i < until; ++i) {
    const formats::ExportEvent& event = timeline.events[i];
    if (event.bytes > 0) {
      alive[event.address] = {event.bytes, event.what};
    } else if (alive.erase(event.address) == 0) {
      before_bytes += event.bytes;
    }
  }
  std::map<uint32_t, Group> groups;
  for (const auto& [address, one] : alive) {
    Group& group = groups[one.second];
    group.bytes += one.first;
    ++group.count;
  }
  std::vector<std::pair<std::string, Group>> sorted;
  for (const auto& [name, group] : groups) {
    sorted.emplace_back(
        timeline.names[name].empty() ? "unknown" : timeline.names[name], group);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.bytes != b.second.bytes ? a.second.bytes > b.second.bytes
                                            : a.first < b.first;
  });
  return sorted;
}

constexpr int kShownOps = 10;
constexpr int kShownAliveStorages = 10;

void PrintOps(const v1::ShownMoment& shown, Console& console) {
  const int first = std::max(shown.ops_size() - kShownOps, 0);
  if (shown.ops_size() == 0) return;
  console.Line("\nTHE LAST OPS");
  for (int i = first; i < shown.ops_size(); ++i) {
    const v1::LastOp& op = shown.ops(i);
    const std::string number = op.has_op() ? StrCat(op.op()) : std::string();
    std::string line = StrCat(op.under_way() ? "> " : "  ", Right(number, 6),
                              "  ", Left(op.name(), 40), op.module());
    if (op.again()) line += op.module().empty() ? "again" : ", again";
    console.Line(line);
  }
}

void PrintStorages(const v1::ShownMoment& shown, Console& console) {
  const v1::Moment& moment = shown.moment();
  if (moment.storages_size() == 0) return;
  const uint64_t all =
      static_cast<uint64_t>(moment.storages_size()) + moment.more_storages();
  int64_t bytes = moment.more_bytes();
  for (const v1::HeldStorage& held : moment.storages()) bytes += held.bytes();
  console.Line(StrCat("\nWHAT WAS ALIVE (", FormatBytes(bytes), ", ", all,
                      all == 1 ? " storage)" : " storages)"));
  const int most = std::min(moment.storages_size(), kShownAliveStorages);
  for (int i = 0; i < most; ++i) {
    const v1::HeldStorage& held = moment.storages(i);
    bytes -= held.bytes();
    const std::string where = held.name().empty() ? held.module() : held.name();
    console.Line(StrCat(
        "  ", Right(FormatBytes(held.bytes()), 11), "  ",
        Left(std::string(formats::WordOf(formats::kCategoryNames,
                                         static_cast<int>(held.category()))),
             15),
        "  ", Left(held.made_by().empty() ? "-" : held.made_by(), 32), "  ",
        where));
  }
  if (all > static_cast<uint64_t>(most)) {
    console.Line(StrCat("  ", Right(FormatBytes(bytes), 11), "  in ",
                        all - static_cast<uint64_t>(most), " more"));
  }
}

}  // namespace

Tone ToneOf(const v1::Verdict& verdict) {
  if (verdict.validated()) {
    return verdict.other_load().empty() ? Tone::kGood : Tone::kPlain;
  }
  const bool failed =
      !verdict.feasible() || !verdict.refused().empty() ||
      !verdict.withdrawn().empty() || verdict.over_budget_steps() > 0 ||
      verdict.mismatches() > 0 || verdict.checks_differing() > 0 ||
      verdict.state() == v1::RUN_STATE_KILLED ||
      verdict.state() == v1::RUN_STATE_FAILED;
  return failed ? Tone::kBad : Tone::kPlain;
}

Status PrintMeasuredPeak(const v1::Run& run, const ServerClient& client,
                         Console& console) {
  formats::MeasuredTimeline measured("measured");
  uint64_t step = 0;
  const Status read = client.ReadStep(run.run_id(), /*planned=*/false,
                                      [&](const v1::StepPart& part) {
                                        if (part.end_ns() != 0)
                                          step = part.step();
                                        measured.Add(part);
                                      });
  if (read.code() == Code::kNotFound) return OkStatus();
  RETURN_IF_ERROR(read);
  const formats::ExportTimeline timeline = measured.Finish();
  int64_t before_bytes = 0;
  const auto alive = AliveAtPeak(timeline, before_bytes);
  console.Line(StrCat("\nAT THE MEASURED PEAK (",
                      FormatBytes(timeline.PeakBytes()), ", step ", step,
                      " of ", FormatDuration(timeline.duration_ns), ")"));
  console.Line(StrCat("  ", Right(FormatBytes(before_bytes), 11),
                      "  there before the step"));
  for (size_t i = 0; i < std::min(alive.size(), kShown); ++i) {
    const auto& [name, group] = alive[i];
    console.Line(StrCat("  ", Right(FormatBytes(group.bytes), 11), "  ", name,
                        group.count > 1
                            ? StrCat("  (", group.count, " allocations)")
                            : std::string()));
  }
  if (alive.size() > kShown) {
    console.Line(
        StrCat("  ", Right("", 11), "  and ", alive.size() - kShown, " more"));
  }
  return OkStatus();
}

void PrintWindow(const v1::Run& run, Console& console) {
  if (!run.has_window()) return;
  const v1::WindowStatus& window = run.window();
  std::string text;
  switch (window.state()) {
    case v1::WINDOW_STATE_DONE:
      text = StrCat("recorded ", window.recorded(), " steps, ",
                    window.first_step(), " to ", window.last_step());
      break;
    case v1::WINDOW_STATE_REFUSED:
      text = "refused";
      break;
    default:
      text = StrCat("recorded ", window.recorded(), " of ", window.steps(),
                    " steps");
  }
  if (!window.why().empty()) text += "; " + window.why();
  console.Line("  window              " + text);
}

void PrintCapabilities(const v1::Run& run, Console& console) {
  // Ranks of a job are alike: print the first one, and others where they
  // differ.
  std::map<std::string, std::string> said;
  for (const v1::SessionReport& session : run.sessions()) {
    std::vector<v1::Capability> lines(session.capabilities().begin(),
                                      session.capabilities().end());
    std::stable_sort(lines.begin(), lines.end(),
                     [](const v1::Capability& a, const v1::Capability& b) {
                       return a.name() < b.name();
                     });
    for (const v1::Capability& one : lines) {
      std::string text = one.value();
      if (!one.why().empty()) {
        text += StrCat(text.empty() ? "" : ": ", one.why());
      }
      const auto [place, fresh] = said.try_emplace(one.name(), text);
      if (!fresh && place->second == text) continue;
      const std::string who = session.rank() > 0 && !fresh
                                  ? StrCat("rank ", session.rank(), ": ")
                                  : std::string();
      console.Line(StrCat("  ", Left(one.name(), 20), who, text));
    }
  }
}

void PrintMoments(const v1::GetMomentsResponse& moments, Console& console) {
  for (int i = 0; i < moments.moments_size(); ++i) {
    const v1::ShownMoment& shown = moments.moments(i);
    const std::string rank =
        shown.rank() > 0 ? StrCat("rank ", shown.rank(), ": ") : std::string();
    console.Line(StrCat(i == 0 ? "\n" : "  earlier: ", rank, shown.sentence()),
                 i == 0 ? Tone::kBad : Tone::kFaint);
    if (i > 0) continue;
    console.Line(StrCat("  ", shown.source()), Tone::kFaint);
    PrintOps(shown, console);
    PrintStorages(shown, console);
  }
}

}  // namespace reprise::cli
