// SPDX-License-Identifier: Apache-2.0
//
// Planning where several daemons share a store: each plan is made once.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/str_cat.h"
#include "server/service/planning/planning.h"
#include "server/store/plan_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks whether the plan is there, or its maker is gone.
constexpr auto kLook = std::chrono::milliseconds(250);

// Larger requests are planned without looking for equal ones: the name of a
// lease is an index's key.
constexpr size_t kMostRequestBytes = 1000;

// Equal for requests that ask for the same plan, whoever asks: what they say, as
// hex digits. "" for those that are too large.
std::string RequestName(const v1::PlanRequest& request, uint32_t replan) {
  v1::PlanRequest what = request;
  what.clear_run_id();
  what.clear_request_id();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.SetSerializationDeterministic(true);
    what.SerializeToCodedStream(&out);
  }
  if (bytes.size() > kMostRequestBytes) return "";
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = StrCat(replan, "-");
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

// What the client said of a name that RequestIdOf has made.
std::string SaidId(const std::string& request_id) {
  return request_id.substr(request_id.find('\n') + 1);
}

// A request for the replacement of a plan follows its step within seconds, so
// older entries are of no use.
constexpr size_t kMaxEntries = 256;

}  // namespace

StatusOr<std::optional<v1::Plan>> Planning::Known(
    const v1::PlanRequest& request, const std::string& name) {
  std::optional<v1::Plan> plan;
  RETURN_IF_ERROR(store_.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(const std::string plan_id, FindAnswer(db, name));
    if (plan_id.empty()) return OkStatus();
    ASSIGN_OR_RETURN(PlanRow row, LoadPlan(db, plan_id));
    plan = std::move(row.plan);
    return OkStatus();
  }));
  if (!plan || request.run_id().empty()) return plan;
  RETURN_IF_ERROR(CheckTrusted(*plan, request.run_id()));
  RETURN_IF_ERROR(store_.Write([&](Database& db) -> Status {
    RETURN_IF_ERROR(EnsureRun(db, request.run_id(), RealtimeNs()));
    return SetRunPlan(db, request.run_id(), plan->plan_id());
  }));
  hub_.Notify(request.run_id());
  return plan;
}

StatusOr<v1::Plan> Planning::MakeOnce(const v1::PlanRequest& request,
                                      const PlanningHooks& hooks,
                                      uint32_t replan) {
  const std::string name = RequestName(request, replan);
  if (name.empty()) return MakeHere(request, hooks, replan, "");
  const Clock::time_point start = Clock::now();
  while (true) {
    ASSIGN_OR_RETURN(std::optional<v1::Plan> known, Known(request, name));
    if (known) return *std::move(known);
    ASSIGN_OR_RETURN(const std::unique_ptr<Lease> lease, store_.TryLease(name));
    if (lease != nullptr) {
      // Its last holder may have stored the plan since we looked.
      ASSIGN_OR_RETURN(known, Known(request, name));
      if (known) return *std::move(known);
      return MakeHere(request, hooks, replan, name);
    }
    if (stopping_) return Unavailable("the server is shutting down");
    if (hooks.cancelled && hooks.cancelled()) {
      return Cancelled("the client left before the plan was made");
    }
    if (hooks.on_progress) {
      v1::PlanProgress waiting;
      waiting.set_elapsed_ms(
          std::chrono::duration<double, std::milli>(Clock::now() - start)
              .count());
      waiting.set_overhead(-1);
      waiting.set_gap(-1);
      hooks.on_progress(waiting);
    }
    store_.AwaitLeases(kLook);
  }
}

Replacements::Entries::iterator Replacements::Find(const std::string& run_id,
                                                   const std::string& plan_id) {
  return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return e.run_id == run_id && e.plan_id == plan_id;
  });
}

void Replacements::DropOldest() {
  if (entries_.size() < kMaxEntries) return;
  const auto oldest =
      std::find_if(entries_.begin(), entries_.end(),
                   [](const Entry& entry) { return !entry.is_making; });
  if (oldest != entries_.end()) entries_.erase(oldest);
}

Replacements::Result Replacements::Once(
    const std::string& run_id, const std::string& plan_id, int64_t more_bytes,
    const std::function<StatusOr<v1::Plan>()>& make) {
  std::unique_lock lock(mutex_);
  auto entry = Find(run_id, plan_id);
  while (entry != entries_.end() && entry->is_making) {
    made_.wait(lock);
    entry = Find(run_id, plan_id);
  }
  if (entry != entries_.end()) {
    const Result& known = entry->result;
    if (known.plan.feasible() || more_bytes >= known.more_bytes) return known;
    entries_.erase(entry);
  }
  DropOldest();
  entries_.push_back({.run_id = run_id, .plan_id = plan_id, .result = {}});
  lock.unlock();

  Result result{.status = OkStatus(), .plan = {}, .more_bytes = more_bytes};
  StatusOr<v1::Plan> made = make();
  if (!made.ok()) {
    result.status = made.status();
  } else if (made->feasible()) {
    result.plan.set_feasible(true);
    result.plan.set_plan_id(made->plan_id());
  } else {
    result.plan = *std::move(made);
  }

  lock.lock();
  entry = Find(run_id, plan_id);
  const bool stands =
      result.status.ok() || result.status.code() == Code::kFailedPrecondition;
  if (stands) {
    entry->is_making = false;
    entry->result = result;
  } else {
    entries_.erase(entry);
  }
  made_.notify_all();
  return result;
}

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
    return NotFound(StrCat("request_id \"", SaidId(request_id).substr(0, 64),
                           "\": no such call is running"));
  }
  for (auto it = first; it != last; ++it) it->second->asked_ = true;
  return OkStatus();
}

std::string RequestIdOf(std::string_view user, std::string_view request_id) {
  return request_id.empty() ? "" : StrCat(user, "\n", request_id);
}

Status CheckRequestId(const std::string& request_id) {
  const size_t size = SaidId(request_id).size();
  if (size <= 64) return OkStatus();
  return InvalidArgument(
      StrCat("request_id: at most 64 characters, got ", size));
}

}  // namespace reprise::server
