// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "base/str_cat.h"
#include "clients/cli/core/console.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/graph_names.h"

namespace reprise::cli {

namespace {

using Parts = google::protobuf::RepeatedPtrField<v1::ComparedPart>;

std::string Signed(int64_t bytes) {
  return StrCat(bytes > 0   ? "+"
                : bytes < 0 ? "-"
                            : "",
                FormatBytes(std::abs(bytes)));
}

std::string SideLine(const char* letter, const v1::ComparedSide& side) {
  std::string text =
      StrCat("  ", letter, "  ", Shown(side.name()), "  ", side.peak_of(),
             "  peak ", FormatBytes(side.peak_bytes()));
  if (side.budget_bytes() > 0) {
    text += StrCat(", budget ", FormatBytes(side.budget_bytes()));
  }
  if (side.step_ns() > 0) {
    text += StrCat(", step ", FormatDuration(side.step_ns()));
  }
  if (side.overhead() > 0) {
    text += StrCat(" (", FormatPercent(side.overhead(), /*sign=*/true), ")");
  }
  return text + "\n";
}

std::string DiffRow(const std::string& a, const std::string& b,
                    const std::string& change, const std::string& name) {
  return StrCat("  ", Right(a, 11), Right(b, 11), Right(change, 12),
                name.empty() ? "" : "  ", Shown(name), "\n");
}

// The last line of a table of which some rows are not shown.
std::string MoreRows(uint64_t count) {
  if (count == 0) return "";
  return StrCat("  and ", count, " more; see --top\n");
}

std::string Table(const char* title, const Parts& parts, uint32_t left_out,
                  bool by_category, bool all, int most) {
  std::string rows;
  int shown = 0;
  uint64_t more = left_out;
  for (const v1::ComparedPart& part : parts) {
    const int64_t change = part.b_bytes() - part.a_bytes();
    if (change == 0 && part.a_count() == part.b_count() && !all) continue;
    if (shown == most) {
      ++more;
      continue;
    }
    ++shown;
    const std::string category(
        formats::WordOf(formats::kCategoryTexts, part.category()));
    const std::string name =
        by_category ? category
                    : StrCat(part.name().empty() ? "(not known)" : part.name(),
                             "  ", category);
    rows += DiffRow(FormatBytes(part.a_bytes()), FormatBytes(part.b_bytes()),
                    Signed(change), name);
  }
  if (rows.empty()) return "";
  return StrCat("\n", title, "\n", DiffRow("A", "B", "B - A", ""), rows,
                MoreRows(more));
}

std::string Recomputed(const v1::Comparison& all_of, bool all, int most) {
  std::string rows;
  int shown = 0;
  uint64_t more = all_of.more_recomputed();
  for (const v1::ComparedOp& op : all_of.recomputed()) {
    if (op.a_again() == op.b_again() && !all) continue;
    if (shown == most) {
      ++more;
      continue;
    }
    ++shown;
    std::string name = op.name();
    if (!op.module().empty()) name += "  " + op.module();
    if (!op.source().empty()) name += "  " + op.source();
    const int64_t change = op.b_ns() - op.a_ns();
    rows += DiffRow(
        StrCat(op.a_again()), StrCat(op.b_again()),
        StrCat(change < 0 ? "-" : "+", FormatDuration(std::abs(change))), name);
  }
  if (rows.empty()) return "";
  return StrCat("\nRUN AGAIN, how often\n", DiffRow("A", "B", "B - A", ""),
                rows, MoreRows(more));
}

}  // namespace

std::string ComparisonText(const v1::Comparison& of, bool all, int most) {
  return StrCat(
      SideLine("A", of.a()), SideLine("B", of.b()),
      Table("AT THE PEAK, BY CATEGORY", of.categories(), 0, true, all, most),
      Table("BY MODULE", of.modules(), of.more_modules(), false, all, most),
      Table("BY SOURCE LINE", of.sources(), of.more_sources(), false, all,
            most),
      Recomputed(of, all, most));
}

}  // namespace reprise::cli
