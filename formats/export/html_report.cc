// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/str_cat.h"
#include "formats/convert/graph_names.h"
#include "formats/export/timeline.h"

namespace reprise::formats {

namespace {

constexpr int kColumns = 1000;
constexpr int kHeight = 220;

constexpr const char* kHead = R"(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root{color-scheme:light dark;--text:#16191f;--soft:#5a626e;--line:#e2e5ea;--card:#fff;--page:#f6f7f9;--fill:#1d4ed8;--budget:#dc1e2e}
@media(prefers-color-scheme:dark){:root{--text:#e9ecf1;--soft:#a3abb8;--line:#2a303b;--card:#171b22;--page:#0f1217;--fill:#7aa2ff;--budget:#ff5a65}}
body{margin:0 auto;max-width:1100px;padding:24px 16px;background:var(--page);color:var(--text);font:14px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums}
h1{font-size:22px;margin:0 0 4px}h2{font-size:15px;margin:0 0 2px}
section{margin:20px 0;padding:16px 18px;border:1px solid var(--line);border-radius:10px;background:var(--card)}
.sentence{font-size:17px}.soft{color:var(--soft)}
svg{display:block;width:100%;height:220px;margin:10px 0 6px;border-bottom:1px solid var(--line)}
.scroll{overflow-x:auto}table{width:100%;border-collapse:collapse}
th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:left;overflow-wrap:anywhere}
th{color:var(--soft);font-weight:500;font-size:12px}.right{text-align:right;white-space:nowrap}
p.soft{margin:0 0 12px}
.area{fill:var(--fill);opacity:.75}.budget{stroke:var(--budget);vector-effect:non-scaling-stroke}
@media(max-width:600px){tr{display:grid;grid-template-columns:84px 1fr}tr:has(th){display:none}td{border:0;padding:1px 8px}td.right{text-align:left}td:nth-child(n+3){grid-column:2;color:var(--soft)}tr{padding:5px 0;border-bottom:1px solid var(--line)}}
</style>
)";

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : ValidUtf8(text, 4096)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// The largest value of the curve in each column.
std::vector<int64_t> ColumnsOf(const ExportTimeline& timeline) {
  std::vector<int64_t> columns;
  const std::vector<ExportPoint>& curve = timeline.curve;
  const int64_t length = std::max<int64_t>(timeline.duration_ns, 1);
  const auto begin_of = [&](int column) {
    return static_cast<int64_t>(static_cast<__int128>(length) * column /
                                kColumns);
  };
  size_t next = 0;
  int64_t held = curve.empty() ? 0 : curve.front().bytes;
  for (int i = 0; i < kColumns; ++i) {
    // The old value counts only if it lasts into the column.
    const bool lasts =
        next >= curve.size() || curve[next].time_ns > begin_of(i);
    int64_t most = lasts ? held : 0;
    const bool last = i + 1 == kColumns;
    while (next < curve.size() &&
           (curve[next].time_ns < begin_of(i + 1) || last)) {
      held = curve[next++].bytes;
      most = std::max(most, held);
    }
    columns.push_back(most);
  }
  return columns;
}

// One decimal of a pixel is enough.
std::string Pixel(double value) {
  const auto tenths = static_cast<int64_t>(value * 10 + 0.5);
  return StrCat(tenths / 10, ".", tenths % 10);
}

std::string Drawing(const ExportTimeline& timeline, int64_t budget_bytes) {
  const std::vector<int64_t> columns = ColumnsOf(timeline);
  int64_t top = std::max<int64_t>(budget_bytes, 1);
  for (const int64_t most : columns) top = std::max(top, most);
  const double scale = kHeight / (1.04 * static_cast<double>(top));
  const auto y = [&](int64_t bytes) {
    return Pixel(kHeight -
                 static_cast<double>(std::max<int64_t>(bytes, 0)) * scale);
  };
  std::string up;
  for (int i = 0; i < kColumns; ++i) {
    up += StrCat(i == 0 ? "M" : "L", i, " ", y(columns[static_cast<size_t>(i)]),
                 "H", i + 1);
  }
  std::string svg =
      StrCat("<svg viewBox=\"0 0 ", kColumns, " ", kHeight,
             "\" preserveAspectRatio=\"none\" role=\"img\" ",
             "aria-label=\"peak ", FormatBytes(timeline.PeakBytes()), "\">",
             "<path class=\"area\" d=\"", up, "V", kHeight, "H0Z\"/>");
  if (budget_bytes > 0) {
    svg += StrCat("<path class=\"budget\" d=\"M0 ", y(budget_bytes), "H",
                  kColumns, "\"/>");
  }
  svg += StrCat(
      "</svg>\n<p class=\"soft\">The drawing is ",
      FormatDuration(timeline.duration_ns), " wide and ",
      FormatBytes(static_cast<int64_t>(1.04 * static_cast<double>(top))),
      " high",
      budget_bytes > 0
          ? StrCat("; the line is the budget of ", FormatBytes(budget_bytes))
          : std::string(),
      ".</p>\n");
  return svg;
}

struct Held {
  int64_t bytes = 0;
  int64_t since_ns = 0;
  uint32_t what = 0;
  uint32_t where = 0;
};

// What is alive when the curve is highest: of the states at that time the
// largest one.
std::vector<Held> AliveAtPeak(const ExportTimeline& timeline, int64_t peak_ns) {
  std::unordered_map<uint64_t, Held> alive;
  std::vector<Held> best;
  int64_t sum = 0, most = -1;
  const auto keep = [&] {
    if (sum <= most) return;
    most = sum;
    best.clear();
    for (const auto& [address, held] : alive) best.push_back(held);
  };
  bool there = false;
  for (const ExportEvent& event : timeline.events) {
    if (event.time_ns > peak_ns) break;
    // The state that lasts until then, unless something happens at that time.
    if (event.time_ns == peak_ns && !there) there = true;
    if (event.bytes > 0) {
      alive[event.address] = {event.bytes, event.time_ns, event.what,
                              event.where};
      sum += event.bytes;
    } else {
      if (there) keep();
      const auto old = alive.find(event.address);
      if (old == alive.end()) continue;
      sum -= old->second.bytes;
      alive.erase(old);
    }
  }
  keep();
  std::sort(best.begin(), best.end(), [](const Held& a, const Held& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.since_ns < b.since_ns;
  });
  return best;
}

std::string Row(int64_t bytes, std::string_view category,
                const std::string& what, const std::string& where,
                const std::string& since) {
  return StrCat("<tr><td class=\"right\">", FormatBytes(bytes), "</td><td>",
                category, "</td><td>", Escaped(what), "</td><td>",
                Escaped(where), "</td><td class=\"right\">", since,
                "</td></tr>\n");
}

std::string_view CategoryOf(const ExportTimeline& timeline, uint32_t what) {
  const size_t at = what - timeline.categories_from;
  return what < timeline.categories_from || at >= timeline.categories.size()
             ? ""
             : WordOf(kCategoryTexts,
                      static_cast<int>(timeline.categories[at]));
}

std::string_view TextOf(v1::Category category) {
  return WordOf(kCategoryTexts, static_cast<int>(category));
}

std::string Table(int64_t peak, int64_t peak_ns, const std::string& rows) {
  return StrCat("<h2>Alive at the peak, ", FormatBytes(peak), " after ",
                FormatDuration(peak_ns),
                "</h2>\n<div class=\"scroll\"><table><tr><th class=\"right\">"
                "Bytes</th><th>Category</th><th>What</th><th>Where</th><th "
                "class=\"right\">Since</th></tr>\n",
                rows, "</table></div>\n");
}

// The categories are those of the page, which follow from all that is recorded.
std::string MeasuredTable(const v1::LiveMemory& memory) {
  std::string rows;
  std::array<int64_t, v1::Category_ARRAYSIZE> listed{};
  for (const v1::LiveAllocation& one : memory.allocations()) {
    listed[static_cast<size_t>(one.category())] += one.bytes();
    const std::string where = one.stack_size() > 0 ? one.stack(0) : "";
    rows += Row(one.bytes(), TextOf(one.category()),
                one.owner().empty() ? "not known" : one.owner(),
                where == one.owner() ? "" : where,
                one.has_born_ns() ? FormatDuration(one.born_ns()) : "");
  }
  for (const v1::LiveGroup& group : memory.categories()) {
    const int64_t rest =
        group.bytes() - listed[static_cast<size_t>(group.category())];
    if (rest == 0) continue;
    rows += Row(rest, TextOf(group.category()),
                memory.folded_count() > 0
                    ? "there before the recording, and smaller ones"
                    : "there before the recording",
                "", "");
  }
  return Table(memory.live_bytes(), memory.at_ns(), rows);
}

std::string PeakTable(const ExportTimeline& timeline) {
  if (timeline.at_peak) return MeasuredTable(*timeline.at_peak);
  int64_t peak = 0, peak_ns = 0;
  for (const ExportPoint& point : timeline.curve) {
    if (point.bytes <= peak) continue;
    peak = point.bytes;
    peak_ns = point.time_ns;
  }
  const std::vector<Held> alive = AliveAtPeak(timeline, peak_ns);
  std::string rows;
  int64_t rest = peak, folded = 0;
  for (size_t i = 0; i < alive.size(); ++i) {
    rest -= alive[i].bytes;
    if (i >= kMostRows) {
      folded += alive[i].bytes;
      continue;
    }
    const std::string& what = timeline.names[alive[i].what];
    rows +=
        Row(alive[i].bytes, CategoryOf(timeline, alive[i].what),
            what.empty() ? "not known" : what, timeline.names[alive[i].where],
            FormatDuration(alive[i].since_ns));
  }
  if (folded > 0) {
    rows += Row(folded, "", StrCat(alive.size() - kMostRows, " smaller ones"),
                "", "");
  }
  const int64_t lasting = std::min(timeline.static_bytes, rest);
  rest -= lasting;
  for (const planner::StaticPart& part : planner::DivideBytes(
           lasting, timeline.static_parts, planner::Category::kUnspecified)) {
    const bool named = part.category != planner::Category::kUnspecified;
    rows += Row(part.bytes,
                named ? WordOf(kCategoryTexts, static_cast<int>(part.category))
                      : "unknown",
                named ? "static memory, there throughout"
                      : "there before the step, or reserve",
                "", "");
  }
  if (rest > 0) {
    rows += Row(rest, "", "workspace, and what no record names", "", "");
  }
  return Table(peak, peak_ns, rows);
}

}  // namespace

std::string WriteHtmlReport(const ReportFacts& facts,
                            const std::vector<ExportTimeline>& timelines) {
  std::string html =
      StrCat(kHead, "<title>", Escaped(facts.name), " · Reprise</title>\n<h1>",
             Escaped(facts.name), "</h1>\n");
  if (!facts.sentence.empty()) {
    html += StrCat("<p class=\"sentence\">", Escaped(facts.sentence), "</p>\n");
  }
  html +=
      "<p class=\"soft\">Memory over one step. A drawing is as high as the "
      "largest value in each of its columns. Made by Reprise; this file loads "
      "nothing.</p>\n";
  for (const ExportTimeline& timeline : timelines) {
    html += StrCat(
        "<section>\n<h2>Memory, ", Escaped(timeline.title),
        "</h2>\n<div class=\"soft\">peak ", FormatBytes(timeline.PeakBytes()),
        ", of which ", FormatBytes(timeline.static_bytes),
        " are there throughout</div>\n", Drawing(timeline, facts.budget_bytes),
        PeakTable(timeline), "</section>\n");
  }
  return html + "</html>\n";
}

}  // namespace reprise::formats
