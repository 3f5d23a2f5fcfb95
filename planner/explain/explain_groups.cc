// SPDX-License-Identifier: Apache-2.0
#include "planner/explain/explain_groups.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/str_cat.h"
#include "planner/construct/blocks.h"

namespace reprise::planner {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Stands for a number in a pattern; never occurs in a real path.
constexpr char kNumber = '\0';

// A path, separated into text and numbers: "layers.3.mlp" -> "layers.#.mlp",
// {3}. Digits within a word ("conv2d") and numbers of more than 9 digits are
// text.
struct Pattern {
  std::string text;
  std::vector<int> numbers;
};

// Splits a path into text and numbers.
Pattern PatternOf(const std::string& path) {
  Pattern pattern;
  size_t i = 0;
  while (i < path.size()) {
    const size_t end = std::min(path.find('.', i), path.size());
    const bool is_number =
        end > i && end - i <= 9 &&
        std::all_of(path.begin() + i, path.begin() + end, IsDigit);
    if (is_number) {
      int number = 0;
      std::from_chars(path.data() + i, path.data() + end, number);
      pattern.numbers.push_back(number);
      pattern.text += kNumber;
    } else {
      pattern.text += path.substr(i, end - i);
    }
    if (end < path.size()) pattern.text += '.';
    i = end + 1;
  }
  return pattern;
}

// {0, 1, 2, 5} -> "0-2,5"; if there are many ranges, the middle is omitted.
std::string Ranges(const std::set<int>& numbers) {
  constexpr int kMostRanges = 6;
  std::vector<std::string> ranges;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const int first = *it;
    int last = first;
    while (++it != numbers.end() && *it == last + 1) last = *it;
    ranges.push_back(first == last ? StrCat(first) : StrCat(first, "-", last));
  }
  std::string text;
  const int count = static_cast<int>(ranges.size());
  for (int i = 0; i < count; ++i) {
    if (count > kMostRanges && i == kMostRanges - 1) {
      text += "..";
      i = count - 1;
      text += ranges[i];
      break;
    }
    text += (i == 0 ? "" : ",") + ranges[i];
  }
  return text;
}

// Returns how many ops of the same name its module ran before each op: this
// distinguishes the first norm of a block from the second.
std::vector<int> Occurrences(const StepGraph& graph) {
  std::vector<int> result(graph.op_count(), 0);
  std::map<std::pair<std::string, std::string>, int> seen;
  for (OpId o = 0; o < graph.op_count(); ++o) {
    const Op& op = graph.ops[o];
    result[o] = seen[{op.module, op.name}]++;
  }
  return result;
}

}  // namespace

std::string JoinPaths(const std::vector<std::string>& paths) {
  constexpr size_t kMostPatterns = 3;
  // In order of first occurrence.
  std::vector<Pattern> patterns;
  std::vector<std::vector<std::set<int>>> numbers;
  for (const std::string& path : paths) {
    Pattern pattern = PatternOf(path);
    size_t i = 0;
    while (i < patterns.size() && patterns[i].text != pattern.text) ++i;
    if (i == patterns.size()) {
      numbers.emplace_back(pattern.numbers.size());
      patterns.push_back(pattern);
    }
    for (size_t k = 0; k < pattern.numbers.size(); ++k) {
      numbers[i][k].insert(pattern.numbers[k]);
    }
  }
  std::string text;
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (i == kMostPatterns) {
      return StrCat(text, ", .. ", patterns.size() - i, " more");
    }
    if (i > 0) text += ", ";
    size_t at = 0;
    for (const char c : patterns[i].text) {
      if (c == kNumber) {
        text += Ranges(numbers[i][at++]);
      } else {
        text += c;
      }
    }
  }
  return text;
}

std::vector<StorageGroup> GroupStorages(
    const Problem& problem, const std::vector<StorageExplanation>& storages) {
  const StepGraph& graph = *problem.graph;
  const std::vector<int> occurrence = Occurrences(graph);
  const Blocks blocks = FindBlocks(problem);
  using Key = std::tuple<std::string, std::string, int, int, int64_t, int>;
  struct Draft {
    std::vector<std::string> paths;
    std::map<std::string, int> whys;
    StorageGroup group;
  };
  std::map<Key, Draft> drafts;
  for (const StorageExplanation& explained : storages) {
    const StorageId s = explained.storage;
    const Op& op = graph.ops[explained.made_by];
    const auto place =
        std::find(op.writes.begin(), op.writes.end(), s) - op.writes.begin();
    // The corresponding op of the first block.
    OpId first = explained.made_by;
    if (blocks.Has(first)) {
      first = blocks.runs[blocks.run_of[first]].begin + blocks.PlaceOf(first);
    }
    const int decision = static_cast<int>(explained.decision);
    // No op of the step has made it.
    const bool is_state =
        graph.storages[s].category == Category::kOptimizerState &&
        explained.made_by == 0;
    Draft& draft =
        is_state ? drafts[{"", graph.storages[s].name, 0, 0, 0, decision}]
                 : drafts[{PatternOf(graph.ops[first].module).text, op.name,
                           occurrence[first], static_cast<int>(place),
                           problem.bytes[s], decision}];
    const std::string path = is_state ? "" : op.module;
    if (draft.paths.empty() || draft.paths.back() != path) {
      draft.paths.push_back(path);
    }
    ++draft.whys[explained.why];
    int64_t& slack = draft.group.copy_slack_ns;
    slack = draft.group.storages.empty()
                ? explained.copy_slack_ns
                : std::min(slack, explained.copy_slack_ns);
    draft.group.decision = explained.decision;
    draft.group.bytes += problem.bytes[s];
    draft.group.recompute_ns +=
        explained.recompute_ns * explained.times_recomputed;
    draft.group.storages.push_back(s);
  }
  std::vector<StorageGroup> groups;
  for (auto& [key, draft] : drafts) {
    const std::string path = JoinPaths(draft.paths);
    const std::string& op = std::get<1>(key);
    draft.group.name =
        path.empty() || op.empty() ? path + op : StrCat(path, " ", op);
    int most = 0;
    for (const auto& [why, count] : draft.whys) {
      if (count > most) draft.group.why = why;
      most = std::max(most, count);
    }
    groups.push_back(std::move(draft.group));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const StorageGroup& a, const StorageGroup& b) {
                     if (a.bytes != b.bytes) return a.bytes > b.bytes;
                     return a.storages < b.storages;
                   });
  return groups;
}

}  // namespace reprise::planner
