// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/moment_text.h"

#include <algorithm>
#include <string>

#include "base/str_cat.h"
#include "base/units.h"
#include "clients/cli/core/columns.h"
#include "formats/convert/graph_names.h"

namespace reprise::cli {
namespace {

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
