// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/console.h"
#include "clients/cli/verbs/peak_report.h"
#include "formats/convert/explain_proto.h"
#include "formats/convert/graph_names.h"
#include "formats/convert/sentence.h"

namespace reprise::cli {
namespace {

std::string DecisionWord(v1::Decision decision) {
  if (decision == v1::DECISION_OFFLOAD) return "host";
  return decision == v1::DECISION_RECOMPUTE ? "recompute" : "save";
}

std::string LabelOf(const v1::StorageExplanation& storage) {
  if (!storage.name().empty()) return Shown(storage.name());
  if (!storage.module().empty()) return Shown(storage.module());
  return StrCat("storage ", storage.storage());
}

std::string CategoryOf(const v1::StorageExplanation& storage) {
  const auto word =
      formats::WordOf(formats::kCategoryNames, storage.category());
  return std::string(word.empty() ? "unknown" : word);
}

// "+3.1 ms, peak -1.0 GiB"
std::string WhatIfText(const v1::WhatIf& what_if) {
  const auto sign = [](int64_t value) { return value < 0 ? "" : "+"; };
  return StrCat(
      what_if.decision() == v1::DECISION_RECOMPUTE ? "recomputed instead: "
                                                   : "kept instead: ",
      sign(what_if.added_ns()), FormatDuration(what_if.added_ns()), ", peak ",
      sign(what_if.added_bytes()), FormatBytes(what_if.added_bytes()));
}

// "hidden 7.07 ms": so long before, or after, anything waits for them do the
// copies end.
std::string WhyOf(const v1::StorageGroup& group) {
  if (group.decision() != v1::DECISION_OFFLOAD) return group.why();
  return StrCat(group.why(), " ",
                FormatDuration(std::abs(group.copy_slack_ns())));
}

std::string MoreOf(size_t all, int most, const char* what) {
  if (all <= static_cast<size_t>(most)) return "";
  return StrCat("  and ", all - static_cast<size_t>(most), " more ", what,
                "; --json has all\n");
}

std::string Groups(const v1::Explanation& explanation, int most) {
  std::string text =
      "\nWHAT THE PLAN DOES\n"
      "  decision   storages       bytes   recompute  why             where\n";
  // Recomputed groups first, because they are what the plan changes.
  std::vector<const v1::StorageGroup*> groups;
  for (const auto& group : explanation.groups()) groups.push_back(&group);
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto* a, const auto* b) {
                     return a->decision() > b->decision();
                   });
  for (size_t i = 0; i < groups.size() && i < static_cast<size_t>(most); ++i) {
    const v1::StorageGroup& group = *groups[i];
    text += StrCat(
        "  ", Left(DecisionWord(group.decision()), 9),
        Right(StrCat(group.count()), 10), Right(FormatBytes(group.bytes()), 12),
        Right(group.recompute_ns() > 0
                  ? "+" + FormatDuration(group.recompute_ns())
                  : "-",
              12),
        "  ", Left(WhyOf(group), 15), " ", Shown(group.name()), "\n");
  }
  return text + MoreOf(groups.size(), most, "groups");
}

std::string InTheWay(const v1::Explanation& explanation, int most) {
  const v1::WorkingSet& set = explanation.working_set();
  const v1::Infeasible& why = explanation.plan().infeasible();
  std::string where = StrCat("op ", set.op(), " ", Shown(set.op_name()));
  if (!set.module().empty()) where += " (" + Shown(set.module()) + ")";
  std::string text = StrCat("\nIN THE WAY: ", where, ", ",
                            formats::FormatBytesUp(set.bytes()), "\n");
  const auto row = [&](int64_t bytes, const std::string& what) {
    if (bytes > 0) {
      text += StrCat("  ", Right(FormatBytes(bytes), 10), "  ", what, "\n");
    }
  };
  row(set.static_bytes(), "static");
  row(set.workspace_bytes(), "workspace of the op");
  const int shown = std::min(most, set.storages_size());
  for (int i = 0; i < shown; ++i) {
    const v1::StorageExplanation& storage = set.storages(i);
    row(storage.bytes(),
        StrCat(Left(CategoryOf(storage), 14), " ", LabelOf(storage)));
  }
  text += MoreOf(static_cast<size_t>(set.storages_size()), most, "storages");
  if (set.by_window()) {
    text += "  and storages that later ops need and no op can make again\n";
  }
  if (!set.advice().empty()) text += StrCat("  advice: ", set.advice(), "\n");
  if (why.smallest_budget_bytes() > 0) {
    text += StrCat("  smallest budget that is not ruled out: ",
                   formats::FormatBytesUp(why.smallest_budget_bytes()), " (",
                   why.smallest_budget_bytes(), " bytes)\n");
  }
  if (why.smallest_known_bytes() > 0) {
    text += StrCat("  smallest with a known plan: ",
                   formats::FormatBytesUp(why.smallest_known_bytes()), " (",
                   why.smallest_known_bytes(), " bytes)\n");
  }
  return text;
}

}  // namespace

std::string AtPeakText(const v1::Explanation& explanation, int most) {
  std::vector<const v1::StorageExplanation*> alive;
  for (const v1::StorageExplanation& storage : explanation.storages()) {
    if (storage.alive_at_peak()) alive.push_back(&storage);
  }
  if (alive.empty()) return "";
  std::string text =
      StrCat("\nLARGEST AT THE PEAK (",
             FormatBytes(explanation.plan().peak_bytes()), ", op ",
             explanation.plan().peak_op(), ", ", alive.size(), " storages)\n");
  for (size_t i = 0; i < alive.size() && i < static_cast<size_t>(most); ++i) {
    const v1::StorageExplanation& storage = *alive[i];
    text += StrCat("  ", Right(FormatBytes(storage.bytes()), 10), "  ",
                   Left(CategoryOf(storage), 14), " ",
                   Left(DecisionWord(storage.decision()), 10),
                   Left(storage.why(), 15), " ", LabelOf(storage), "\n");
    if (storage.lives_size() > 0) {
      text += "              alive";
      for (const v1::StorageLife& life : storage.lives()) {
        text += StrCat(" ", FormatDuration(life.born_ns()), " to ",
                       FormatDuration(life.last_ns()),
                       &life == &*storage.lives().rbegin() ? "" : ",");
      }
      if (storage.has_what_if()) {
        text += "; " + WhatIfText(storage.what_if());
      }
      text += "\n";
    }
  }
  return text + MoreOf(alive.size(), most, "storages");
}

std::string ExplanationText(const v1::Explanation& explanation, int most) {
  if (!explanation.plan().feasible()) return InTheWay(explanation, most);
  std::string text;
  const std::string price = formats::PriceText(explanation);
  if (!price.empty()) text += StrCat("  ", price, " at this budget\n");
  return text + Groups(explanation, most) + AtPeakText(explanation, most);
}

}  // namespace reprise::cli
