// SPDX-License-Identifier: Apache-2.0
//
// All runs of the store with their verdicts, searched, filtered, sorted and cut
// to what a page shows. Verdicts are made once; those of runs that are over are
// stored. Asked for by many pages, a long list is read at most every half second
// while something changes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "reprise/v1/query.pb.h"
#include "server/store/run_hub.h"
#include "server/store/store.h"

namespace reprise::server {

class RunList {
 public:
  // The part of the list that a request asks for.
  StatusOr<v1::ListRunsResponse> Read(Store& store, const RunHub& hub,
                                      const v1::ListRunsRequest& request);

 private:
  struct Entry {
    v1::Run run;
    std::string text;   // what a search looks in, in lower case
    std::string title;  // in lower case
    uint64_t version = 0;
  };
  using List = std::vector<std::shared_ptr<const Entry>>;

  StatusOr<std::shared_ptr<const List>> Refresh(Store& store,
                                                const RunHub& hub);

  std::mutex mutex_;
  std::shared_ptr<const List> list_;  // newest first
  std::unordered_map<std::string, std::shared_ptr<const Entry>> by_id_;
  uint64_t seen_ = 0;
  std::chrono::steady_clock::time_point read_at_;
};

}  // namespace reprise::server
