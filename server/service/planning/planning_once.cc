// SPDX-License-Identifier: Apache-2.0
//
// Planning where several daemons share a store: each plan is made once.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <chrono>

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
  RETURN_IF_ERROR(CheckTrusted(*plan));
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

}  // namespace reprise::server
