// SPDX-License-Identifier: Apache-2.0
#include "server/service/planning/running_calls.h"

#include "base/str_cat.h"

namespace reprise::server {

RunningCalls::Entry::Entry(RunningCalls& calls, const std::string& request_id)
    : calls_(calls) {
  const std::lock_guard lock(calls_.mutex_);
  place_ = calls_.calls_.emplace(request_id, this);
}

RunningCalls::Entry::~Entry() {
  const std::lock_guard lock(calls_.mutex_);
  calls_.calls_.erase(place_);
}

Status RunningCalls::Finish(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = calls_.equal_range(request_id);
  if (request_id.empty() || first == last) {
    return NotFound(StrCat("request_id \"", request_id.substr(0, 64),
                           "\": no such call is running"));
  }
  for (auto it = first; it != last; ++it) it->second->asked_ = true;
  return OkStatus();
}

Status CheckRequestId(const std::string& request_id) {
  if (request_id.size() <= 64) return OkStatus();
  return InvalidArgument(
      StrCat("request_id: at most 64 characters, got ", request_id.size()));
}

}  // namespace reprise::server
