// SPDX-License-Identifier: Apache-2.0
#include "server/service/runs/run_list.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/str_cat.h"
#include "server/service/runs/verdict.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

constexpr uint32_t kDefaultRuns = 100;
constexpr uint32_t kMaxRuns = 1000;
constexpr size_t kMostSentence = 200;
constexpr size_t kMostWords = 16;
// A list of so many runs is read whenever something has changed.
constexpr size_t kSmall = 200;
constexpr auto kFresh = std::chrono::milliseconds(500);

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return lower;
}

std::string TitleOf(const v1::Run& run) {
  if (!run.name().empty() && run.name() != run.run_id()) return run.name();
  return run.host().empty() ? run.run_id() : StrCat(run.host(), ":", run.pid());
}

int64_t PeakOf(const v1::Run& run) {
  const v1::Verdict& verdict = run.verdict();
  if (verdict.measured_peak_bytes() > 0) return verdict.measured_peak_bytes();
  if (verdict.base_peak_bytes() > 0) return verdict.base_peak_bytes();
  return verdict.unplanned_peak_bytes();
}

std::vector<std::string> WordsOf(std::string_view search) {
  std::vector<std::string> words;
  const std::string lower = Lower(search);
  size_t at = 0;
  while (words.size() < kMostWords) {
    at = lower.find_first_not_of(" \t\n", at);
    if (at == std::string::npos) break;
    const size_t end = lower.find_first_of(" \t\n", at);
    words.push_back(lower.substr(at, end - at));
    if (end == std::string::npos) break;
    at = end;
  }
  return words;
}

// Cuts a text to so many bytes, at the begin of a character.
std::string CutText(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
    --end;
  }
  return StrCat(text.substr(0, end), "…");
}

}  // namespace

StatusOr<std::shared_ptr<const RunList::List>> RunList::Refresh(
    Store& store, const RunHub& hub) {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  const uint64_t total = hub.total();
  if (list_ != nullptr &&
      (total == seen_ || (list_->size() > kSmall && now - read_at_ < kFresh))) {
    return list_;
  }
  // Verdicts that were made now and stay, to be stored.
  std::vector<std::pair<std::string, std::shared_ptr<const Entry>>> made;
  auto list = std::make_shared<List>();
  std::unordered_map<std::string, std::shared_ptr<const Entry>> by_id;
  RETURN_IF_ERROR(store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(std::vector<v1::Run> runs,
                     LoadRuns(db, std::numeric_limits<int64_t>::max()));
    list->reserve(runs.size());
    for (v1::Run& run : runs) {
      const std::string id = run.run_id();
      const uint64_t version = hub.VersionOf(id);
      const auto known = by_id_.find(id);
      std::shared_ptr<const Entry> entry;
      if (known != by_id_.end() && known->second->version == version) {
        entry = known->second;
      } else {
        auto fresh = std::make_shared<Entry>();
        std::string made_of;
        fresh->run = std::move(run);
        RETURN_IF_ERROR(AddVerdict(db, fresh->run, &made_of));
        fresh->version = version;
        fresh->title = Lower(TitleOf(fresh->run));
        fresh->text = Lower(StrCat(fresh->title, "\n", id, "\n",
                                   fresh->run.host(), "\n", fresh->run.ending(),
                                   "\n", fresh->run.verdict().sentence()));
        if (!made_of.empty()) made.emplace_back(made_of, fresh);
        entry = std::move(fresh);
      }
      list->push_back(entry);
      by_id.emplace(id, std::move(entry));
    }
    return OkStatus();
  }));
  if (!made.empty()) {
    // On a full disk they are made again the next time.
    (void)store.Write([&](Database& db) -> Status {
      for (const auto& [source, entry] : made) {
        RETURN_IF_ERROR(
            SaveVerdict(db, entry->run.run_id(), source, entry->run.verdict()));
      }
      return OkStatus();
    });
  }
  list_ = std::move(list);
  by_id_ = std::move(by_id);
  seen_ = total;
  read_at_ = now;
  return list_;
}

StatusOr<v1::ListRunsResponse> RunList::Read(
    Store& store, const RunHub& hub, const v1::ListRunsRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const List> list, Refresh(store, hub));
  v1::ListRunsResponse response;
  std::map<v1::Standing, uint32_t> counts;
  const std::vector<std::string> words = WordsOf(request.search());
  std::vector<const Entry*> found;
  std::set<std::string_view> owners;
  for (const auto& entry : *list) {
    if (!request.owner().empty() && entry->run.owner() != request.owner()) {
      continue;
    }
    response.set_total(response.total() + 1);
    owners.insert(entry->run.owner());
    const bool running = entry->run.state() == v1::RUN_STATE_RUNNING;
    response.set_running(response.running() + (running ? 1 : 0));
    ++counts[entry->run.standing()];
    if (request.running() && !running) continue;
    if (request.standing() != v1::STANDING_UNSPECIFIED &&
        request.standing() != entry->run.standing()) {
      continue;
    }
    if (std::all_of(words.begin(), words.end(), [&](const std::string& word) {
          return entry->text.find(word) != std::string::npos;
        })) {
      found.push_back(entry.get());
    }
  }
  for (const auto& [standing, runs] : counts) {
    v1::StandingCount& count = *response.add_standings();
    count.set_standing(standing);
    count.set_runs(runs);
  }
  response.set_owners(static_cast<uint32_t>(owners.size()));
  response.set_matched(static_cast<uint32_t>(found.size()));

  const auto key = [&](const Entry* entry) -> int64_t {
    switch (request.order()) {
      case v1::RUN_ORDER_BUDGET:
        return entry->run.verdict().budget_bytes();
      case v1::RUN_ORDER_PEAK:
        return PeakOf(entry->run);
      case v1::RUN_ORDER_STEPS:
        return static_cast<int64_t>(entry->run.steps());
      default:
        return entry->run.started_ns();
    }
  };
  // Equal ones keep their order, newest first.
  std::stable_sort(
      found.begin(), found.end(), [&](const Entry* a, const Entry* b) {
        if (request.order() == v1::RUN_ORDER_NAME) {
          return request.ascending() ? a->title < b->title
                                     : b->title < a->title;
        }
        return request.ascending() ? key(a) < key(b) : key(b) < key(a);
      });
  if (request.grouping() != v1::RUN_GROUPING_UNSPECIFIED) {
    std::unordered_map<std::string_view, size_t> first;
    const auto group = [&](const Entry* entry) -> std::string_view {
      return request.grouping() == v1::RUN_GROUPING_NAME ? entry->title
                                                         : entry->run.ending();
    };
    for (const Entry* entry : found) {
      first.try_emplace(group(entry), first.size());
    }
    std::stable_sort(found.begin(), found.end(),
                     [&](const Entry* a, const Entry* b) {
                       return first[group(a)] < first[group(b)];
                     });
  }

  const size_t limit =
      request.limit() == 0 ? kDefaultRuns : std::min(request.limit(), kMaxRuns);
  const size_t begin = std::min<size_t>(request.offset(), found.size());
  const size_t end = std::min(begin + limit, found.size());
  for (size_t i = begin; i < end; ++i) {
    v1::Run& run = *response.add_runs();
    run = found[i]->run;
    v1::Verdict& verdict = *run.mutable_verdict();
    verdict.set_sentence(CutText(verdict.sentence(), kMostSentence));
  }
  return response;
}

}  // namespace reprise::server
