// SPDX-License-Identifier: Apache-2.0
//
// GetMemory: what is alive at one instant of the newest traced step.
#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/str_cat.h"
#include "formats/convert/graph_names.h"
#include "server/service/calls/handlers.h"
#include "server/service/memory/evidence.h"
#include "server/service/memory/step_cache.h"

namespace reprise::server {

namespace {

constexpr uint32_t kDefaultRows = 100;
constexpr uint32_t kMostRows = 1000;
constexpr size_t kMostOwners = 50;
constexpr size_t kCategories = v1::Category_ARRAYSIZE;
constexpr size_t kMostFilterBytes = 256;
constexpr std::string_view kNamedByCapture =
    "there before the step: the captured step says what it is";

char LowerLetter(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

bool Contains(std::string_view text, std::string_view lower) {
  return std::search(text.begin(), text.end(), lower.begin(), lower.end(),
                     [](char a, char b) { return LowerLetter(a) == b; }) !=
         text.end();
}

struct Sum {
  int64_t bytes = 0;
  uint64_t count = 0;
};

// The allocations that are alive after one event, and their sums.
class Instant {
 public:
  Instant(const RecordedStep& step, const v1::GetMemoryRequest& request)
      : step_(step), search_(request.search()) {
    std::transform(search_.begin(), search_.end(), search_.begin(),
                   LowerLetter);
    for (size_t c = 0; c < kCategories; ++c) {
      category_matches_[c] = Contains(formats::kCategoryTexts[c], search_);
    }
    digits_ = AddressDigits(search_);
    event_ = EventFor(request);
  }

  void Collect() {
    step_.lifetimes.VisitAlive(static_cast<uint32_t>(event_),
                               [&](size_t index) { Add(index); });
  }

  void Fill(uint32_t limit, v1::LiveMemory& answer) {
    answer.set_step(step_.step);
    answer.set_step_ns(step_.step_ns);
    answer.set_incomplete(step_.incomplete);
    answer.set_at_ns(std::max<int64_t>(step_.curve.time(event_), 0));
    answer.set_live_bytes(step_.curve.bytes(event_));
    answer.set_live_count(all_.count);
    // What is measured and has no allocation of its own.
    const int64_t unlisted =
        std::max<int64_t>(step_.curve.bytes(event_) - all_.bytes, 0);
    answer.set_unlisted_bytes(unlisted);
    answer.set_matched_count(matched_.count);
    answer.set_matched_bytes(matched_.bytes);
    FillRows(limit, answer);
    FillGroups(unlisted, answer);
  }

 private:
  // What is known of allocations with the same stack, name and phase.
  struct Owner {
    Evidence evidence = Evidence::kNothing;
    bool matches = false;
    Sum sum;
  };
  struct Row {
    int64_t bytes;
    size_t index;
  };

  size_t EventFor(const v1::GetMemoryRequest& request) const {
    const MemoryCurve& curve = step_.curve;
    if (!request.has_at_ns()) return curve.highest();
    if (request.until_ns() <= request.at_ns()) {
      return std::max(curve.EventAt(request.at_ns()), step_.first);
    }
    // The state before counts only if it lasts into the range.
    const size_t before = curve.EventAt(request.at_ns() - 1);
    const bool lasts =
        before + 1 >= curve.size() || curve.time(before + 1) > request.at_ns();
    const size_t from = std::max(lasts ? before : before + 1, step_.first);
    return curve.HighestIn(
        from, std::max(curve.EventAt(request.until_ns()), from) + 1);
  }

  bool freed(const Allocation& one) const {
    return one.died != Allocation::kNever;
  }

  v1::Category CategoryHere(size_t index, Evidence evidence) const {
    const v1::Category before = step_.CategoryBefore(index);
    return before != v1::CATEGORY_UNSPECIFIED
               ? before
               : CategoryOf(evidence, freed(step_.lifetimes.all()[index]));
  }

  // Stack (29 bits), phase (2) and name (32).
  static uint64_t KeyOf(const Allocation& one) {
    return (uint64_t{one.stack} << 34) |
           (static_cast<uint64_t>(one.phase) << 32) | one.name;
  }

  Owner& OwnerOf(const Allocation& one) {
    const uint64_t key = KeyOf(one);
    const auto [found, fresh] = owners_.try_emplace(key);
    if (fresh) {
      const std::string& stack = step_.Text(one.stack);
      const std::string& name = step_.Text(one.name);
      found->second.evidence = EvidenceIn(stack, name, one.phase);
      found->second.matches = search_.empty() || Contains(stack, search_) ||
                              Contains(name, search_);
    }
    return found->second;
  }

  void Add(size_t index) {
    const Allocation& one = step_.lifetimes.all()[index];
    const int64_t bytes = step_.BytesOf(index);
    Owner& owner = OwnerOf(one);
    const v1::Category category = CategoryHere(index, owner.evidence);
    const auto add = [&](Sum& sum) {
      sum.bytes += bytes;
      ++sum.count;
    };
    const bool named =
        !step_.Text(one.name).empty() || !step_.Text(one.stack).empty();
    add(all_);
    add(named ? owner.sum : nobody_[static_cast<size_t>(category)]);
    add(categories_[static_cast<size_t>(category)]);
    if (!owner.matches && !category_matches_[static_cast<size_t>(category)] &&
        !AddressMatches(one)) {
      return;
    }
    add(matched_);
    rows_.push_back({bytes, index});
  }

  // Returns the digits of an address as a page shows it, "0x7f00" or "7f00_2";
  // empty for every other text.
  static std::string AddressDigits(std::string_view text) {
    if (text.starts_with("0x")) text.remove_prefix(2);
    text = text.substr(0, text.find('_'));
    const bool hex =
        text.size() >= 4 &&
        text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
    return hex ? std::string(text) : std::string();
  }

  bool AddressMatches(const Allocation& one) const {
    if (digits_.empty()) return false;
    char hex[16];
    const auto [end, error] =
        std::to_chars(hex, std::end(hex), one.address, /*base=*/16);
    return std::string_view(hex, end).find(digits_) != std::string_view::npos;
  }

  void FillRows(uint32_t limit, v1::LiveMemory& answer) {
    const size_t shown = std::min<size_t>(limit, rows_.size());
    std::partial_sort(
        rows_.begin(), rows_.begin() + static_cast<ptrdiff_t>(shown),
        rows_.end(), [](const Row& a, const Row& b) {
          return a.bytes != b.bytes ? a.bytes > b.bytes : a.index < b.index;
        });
    int64_t bytes = 0;
    for (size_t i = 0; i < shown; ++i) {
      bytes += rows_[i].bytes;
      FillRow(rows_[i], *answer.add_allocations());
    }
    answer.set_folded_count(rows_.size() - shown);
    answer.set_folded_bytes(matched_.bytes - bytes);
  }

  void FillRow(const Row& row, v1::LiveAllocation& to) {
    const Allocation& one = step_.lifetimes.all()[row.index];
    const Evidence evidence = OwnerOf(one).evidence;
    to.set_bytes(row.bytes);
    to.set_address(one.address);
    to.set_use(one.use);
    if (one.born != Allocation::kBefore) {
      to.set_born_ns(step_.curve.time(one.born));
    }
    if (freed(one)) to.set_freed_ns(step_.curve.time(one.died));
    to.set_category(CategoryHere(row.index, evidence));
    to.set_evidence(
        std::string(step_.CategoryBefore(row.index) != v1::CATEGORY_UNSPECIFIED
                        ? kNamedByCapture
                        : ReasonOf(evidence, freed(one))));
    to.set_owner(OwnerText(one));
    std::string_view lines = step_.Text(one.stack);
    while (!lines.empty()) {
      const size_t end = lines.find('\n');
      to.add_stack(std::string(lines.substr(0, end)));
      lines.remove_prefix(end == std::string_view::npos ? lines.size()
                                                        : end + 1);
    }
  }

  // The op or frame that the importer named; of a block without one, its
  // innermost frame.
  std::string OwnerText(const Allocation& one) const {
    if (!step_.Text(one.name).empty()) return step_.Text(one.name);
    const std::string& stack = step_.Text(one.stack);
    return stack.substr(0, stack.find('\n'));
  }

  void FillGroups(int64_t unlisted, v1::LiveMemory& answer) {
    for (const planner::StaticPart& part : planner::DivideBytes(
             unlisted, step_.before_parts, planner::Category::kUnknown)) {
      const auto category = static_cast<size_t>(part.category);
      categories_[category].bytes += part.bytes;
      nobody_[category].bytes += part.bytes;
    }
    for (size_t c = 1; c < kCategories; ++c) {
      if (categories_[c].bytes == 0 && categories_[c].count == 0) continue;
      v1::LiveGroup& group = *answer.add_categories();
      group.set_category(static_cast<v1::Category>(c));
      group.set_bytes(categories_[c].bytes);
      group.set_count(categories_[c].count);
    }
    std::unordered_map<std::string, v1::LiveGroup> by_text;
    for (const auto& [key, owner] : owners_) {
      if (owner.sum.count == 0) continue;
      const std::string text =
          OwnerText({.name = static_cast<uint32_t>(key),
                     .stack = static_cast<uint32_t>(key >> 34)});
      v1::LiveGroup& group = by_text[text];
      group.set_owner(text);
      group.set_category(CategoryOf(owner.evidence, false));
      group.set_bytes(group.bytes() + owner.sum.bytes);
      group.set_count(group.count() + owner.sum.count);
    }
    std::vector<v1::LiveGroup> groups;
    for (auto& [text, group] : by_text) groups.push_back(std::move(group));
    std::sort(groups.begin(), groups.end(),
              [](const v1::LiveGroup& a, const v1::LiveGroup& b) {
                return a.bytes() != b.bytes() ? a.bytes() > b.bytes()
                                              : a.owner() < b.owner();
              });
    for (size_t i = 0; i < groups.size(); ++i) {
      if (i < kMostOwners) {
        *answer.add_owners() = std::move(groups[i]);
      } else {
        answer.set_folded_owners(answer.folded_owners() + 1);
        answer.set_folded_owners_bytes(answer.folded_owners_bytes() +
                                       groups[i].bytes());
      }
    }
    for (size_t c = 1; c < kCategories; ++c) {
      if (nobody_[c].bytes == 0) continue;
      v1::LiveGroup& group = *answer.add_owners();
      group.set_bytes(nobody_[c].bytes);
      group.set_count(nobody_[c].count);
      group.set_category(static_cast<v1::Category>(c));
    }
  }

  const RecordedStep& step_;
  std::string search_;
  std::array<bool, kCategories> category_matches_{};
  std::string digits_;  // of an address that is searched for
  size_t event_ = 0;
  std::unordered_map<uint64_t, Owner> owners_;
  std::array<Sum, kCategories> categories_{};
  // Of those, what neither a record nor a stack names an owner of.
  std::array<Sum, kCategories> nobody_{};
  Sum all_, matched_;
  std::vector<Row> rows_;
};

}  // namespace

StatusOr<v1::LiveMemory> GetMemory(Services& services,
                                   const v1::GetMemoryRequest& request) {
  if (request.limit() > kMostRows) {
    return InvalidArgument(
        StrCat("limit: must be 0 to ", kMostRows, ", got ", request.limit()));
  }
  if (request.search().size() > kMostFilterBytes) {
    return InvalidArgument(StrCat("search: at most ", kMostFilterBytes,
                                  " bytes, got ", request.search().size()));
  }
  if (request.has_at_ns() && request.at_ns() < 0) {
    return InvalidArgument(
        StrCat("at_ns: must not be negative, got ", request.at_ns()));
  }
  ASSIGN_OR_RETURN(
      const auto step,
      services.steps.Of(services.store, request.run_id(), request.planned()));
  Instant instant(*step, request);
  instant.Collect();
  v1::LiveMemory answer;
  instant.Fill(request.limit() == 0 ? kDefaultRows : request.limit(), answer);
  return answer;
}

}  // namespace reprise::server
