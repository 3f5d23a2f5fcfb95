// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/run_facts.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/console.h"
#include "formats/convert/graph_names.h"

namespace reprise::cli {
namespace {

constexpr uint64_t kShown = 10;

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
  const StatusOr<v1::LiveMemory> memory =
      client.GetMemory(run.run_id(), /*planned=*/false, 1);
  if (memory.status().code() == Code::kNotFound) return OkStatus();
  RETURN_IF_ERROR(memory.status());
  console.Line(StrCat(
      "\nAT THE MEASURED PEAK (", FormatBytes(memory->live_bytes()), ", step ",
      memory->step(), " of ", FormatDuration(memory->step_ns()), ")"));
  const auto line = [&](int64_t bytes, const std::string& of) {
    console.Line(StrCat("  ", Right(FormatBytes(bytes), 11), "  ", of));
  };
  int64_t before_bytes = 0;
  uint64_t owners = memory->folded_owners();
  for (const v1::LiveGroup& group : memory->owners()) {
    if (group.owner().empty()) before_bytes += group.bytes();
    owners += !group.owner().empty();
  }
  line(before_bytes, "there before the step");
  const auto shown = static_cast<int>(std::min(owners, kShown));
  for (int i = 0; i < shown; ++i) {
    const v1::LiveGroup& group = memory->owners(i);
    line(group.bytes(),
         group.count() > 1
             ? StrCat(group.owner(), "  (", group.count(), " allocations)")
             : group.owner());
  }
  if (owners > kShown) {
    console.Line(
        StrCat("  ", Right("", 11), "  and ", owners - kShown, " more"));
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
