// SPDX-License-Identifier: Apache-2.0
//
// `reprise diff A B`: what differs at the peaks of two runs or plans. Files are
// compared here, what is stored by its server; both by formats/convert/compare.h.
#include <cstdlib>
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/core/files.h"
#include "clients/cli/server/server_client.h"
#include "clients/cli/verbs/file_plan.h"
#include "formats/convert/compare.h"
#include "formats/convert/graph_json.h"
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

// Returns a comparison as tables: the two sides, then bytes at the peak by
// category, module and source line, then what runs again. `all`: also rows that
// are equal. At most `most` lines in a table.
std::string ComparisonText(const v1::Comparison& of, bool all, int most) {
  return StrCat(
      SideLine("A", of.a()), SideLine("B", of.b()),
      Table("AT THE PEAK, BY CATEGORY", of.categories(), 0, true, all, most),
      Table("BY MODULE", of.modules(), of.more_modules(), false, all, most),
      Table("BY SOURCE LINE", of.sources(), of.more_sources(), false, all,
            most),
      Recomputed(of, all, most));
}

StatusOr<formats::PeakSide> SideOfPlanFile(const std::string& path,
                                           const std::string& text) {
  ASSIGN_OR_RETURN(const formats::PlanText read, ReadPlan(path, text));
  ASSIGN_OR_RETURN(const std::string graph_path, FindGraphOf(path, read.graph));
  if (!read.plan.feasible()) {
    return FailedPrecondition(
        StrCat(path, ": says that no plan fits and holds no schedule; compare ",
               graph_path, " instead"));
  }
  ASSIGN_OR_RETURN(const CheckedPlan checked,
                   CheckPlanFile(path, read.plan, graph_path));
  ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(graph_path));
  const int64_t reserve_bytes =
      read.plan.peak_bytes() - checked.report.evaluation.peak_bytes;
  return formats::SideOfPlan(file.graph, checked.graph, read.plan,
                             checked.schedule, checked.capabilities,
                             reserve_bytes);
}

StatusOr<formats::PeakSide> SideOfFile(const std::string& path) {
  StatusOr<formats::PeakSide> side = [&]() -> StatusOr<formats::PeakSide> {
    ASSIGN_OR_RETURN(const std::string text,
                     ReadFile(path, formats::kMaxGraphTextBytes));
    const auto scan = formats::ScanJson(text);
    const bool is_plan =
        scan.ok() && scan->format.rfind("reprise.plan/", 0) == 0;
    if (is_plan) return SideOfPlanFile(path, text);
    ASSIGN_OR_RETURN(const GraphFile file, ReadGraph(path));
    return formats::SideOfGraph(file.graph, file.graph_id);
  }();
  if (side.ok()) {
    side->facts.set_name(path);
    side->facts.set_id(path);
  }
  return side;
}

class DiffCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb = line.AddVerb(
        "diff", "Compare two runs or plans: whose bytes differ at the peak");
    verb.Add(
        "A", a_,
        "A run id (or its beginning, or \"latest\"), a plan id, or a file: "
        "plan or step graph",
        {.required = true, .completes = Completes::kRuns});
    verb.Add("B", b_, "Another; a file only where A is one",
             {.required = true, .completes = Completes::kRuns});
    verb.Flag("--all,!--only-differences", all_, "Also what is equal");
    verb.Add("--top", most_, "Lines of each table, 1 to 500",
             {.shows_default = true, .range = {{1, 500}}});
    verb.Flag("--exit-code", exit_code_, "Exit with 1 if they differ");
    verb.Footer(
        "Without --exit-code exits with 0 whether or not they differ; `equal` "
        "of --json says it.\n\n"
        "Example:\n  reprise diff a.plan.json b.plan.json");
  }

  int Run(const Globals& globals, Console& console) override {
    const bool are_files = LooksLikeFile(a_);
    if (LooksLikeFile(b_) != are_files) {
      return console.UsageError(
          StrCat(a_, ", ", b_,
                 ": a file is compared with a file; import it first to compare "
                 "it with what a server has"));
    }
    const StatusOr<v1::Comparison> found =
        are_files ? CompareFiles() : CompareStored(globals);
    if (!found.ok()) return console.Error(found.status());
    const int code = exit_code_ && !found->equal() ? kFailed : kDone;
    if (globals.json) {
      console.Line(ProtoToJson(*found));
      return code;
    }
    console.Line(found->sentence(),
                 found->equal() ? Tone::kGood : Tone::kPlain);
    console.Raw(ComparisonText(*found, all_, most_));
    return code;
  }

 private:
  StatusOr<v1::Comparison> CompareFiles() const {
    ASSIGN_OR_RETURN(const formats::PeakSide a, SideOfFile(a_));
    ASSIGN_OR_RETURN(const formats::PeakSide b, SideOfFile(b_));
    return formats::Compare(a, b);
  }

  StatusOr<v1::Comparison> CompareStored(const Globals& globals) const {
    ASSIGN_OR_RETURN(const ServerClient client,
                     ServerClient::ConnectOrStart(globals));
    return client.Compare(a_, b_);
  }

  std::string a_;
  std::string b_;
  bool all_ = false;
  bool exit_code_ = false;
  int most_ = 20;
};

}  // namespace

std::unique_ptr<Command> MakeDiffCommand() {
  return std::make_unique<DiffCommand>();
}

}  // namespace reprise::cli
