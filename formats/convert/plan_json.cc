// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/plan_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/json_fields.h"
#include "formats/convert/sentence.h"
#include "planner/model/evaluate.h"

namespace reprise::formats {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kPlanFormat = "reprise.plan/1";
constexpr size_t kMaxPlanTextBytes = size_t{1} << 28;

// By planner::Entry::Kind.
constexpr std::array<std::string_view, 6> kKinds = {"exec", "free",  "send",
                                                    "sent", "fetch", "fetched"};
// By the numbers of the enums.
constexpr std::string_view kPolicies[] = {"", "eager", "program"};
constexpr std::string_view kScopes[] = {"", "order"};
constexpr std::string_view kProofs[] = {"", "none", "solver", "checked"};

// ---- Writing ---------------------------------------------------------------

std::string PassText(const v1::Pass& pass) {
  std::string text;
  for (const char* key : {"name", "runs", "ticks", "first_overhead",
                          "overhead_gain", "bound_gain"}) {
    const bool is_first = std::string_view(key) == "first_overhead";
    if (is_first && !pass.has_first_overhead()) continue;
    text +=
        StrCat(text.empty() ? "{ \"" : ", \"", key, "\": ", JsonOf(pass, key));
  }
  return text + " }";
}

std::string ScheduleText(const v1::Plan& plan) {
  std::string text = "[";
  for (int i = 0; i < plan.schedule_size(); ++i) {
    text += i == 0 ? "" : i % 8 == 0 ? ",\n    " : ", ";
    const auto [kind, id] =
        planner::EntryOf(plan.schedule(i)).value_or(planner::Entry{});
    text += StrCat("[\"", kKinds[static_cast<size_t>(kind)], "\", ", id, "]");
  }
  return text + "]";
}

}  // namespace

std::string WritePlanText(const v1::Plan& plan, std::string_view graph) {
  std::string text;
  const auto add = [&text](const char* key, const std::string& value) {
    text += StrCat(text.empty() ? "{ \"" : ",\n  \"", key, "\": ", value);
  };
  const auto copy = [&](const google::protobuf::Message& from,
                        std::initializer_list<const char*> keys) {
    for (const char* key : keys) add(key, JsonOf(from, key));
  };
  const bool fits = plan.feasible();

  add("format", JsonText(kPlanFormat));
  add("graph", JsonText(graph));
  copy(plan, {"graph_id", "plan_id"});
  if (!plan.executor().empty()) copy(plan, {"executor"});
  add("free_policy", plan.free_policy() == v1::FREE_POLICY_PROGRAM
                         ? "\"program\""
                         : "\"eager\"");
  if (plan.has_link()) {
    const v1::Link& link = plan.link();
    add("link", StrCat("{ \"out_bytes_per_s\": ", link.out_bytes_per_s(),
                       ", \"in_bytes_per_s\": ", link.in_bytes_per_s(),
                       ", \"latency_ns\": ", link.latency_ns(),
                       ", \"host_bytes\": ", link.host_bytes(), " }"));
    copy(plan, {"host_peak_bytes"});
  }
  copy(plan, {"budget", "budget_bytes", "feasible"});
  if (fits) copy(plan, {"peak_bytes"});
  copy(plan, {"base_peak_bytes"});
  if (fits) copy(plan, {"time_ns"});
  copy(plan, {"base_time_ns"});
  if (fits) {
    copy(plan, {"overhead", "bound"});
    add("bound_scope", "\"order\"");
    copy(plan, {"proven_optimal"});
  }
  if (!plan.inferred().empty()) copy(plan, {"inferred"});
  add("bound_proof",
      JsonText(
          kProofs[std::clamp<int>(plan.bound_proof(), 1, v1::BoundProof_MAX)]));
  copy(plan, {"solver"});
  add("solve_ms", Json(std::round(plan.solve_ms() * 1000) / 1000).dump());
  copy(plan, {"ticks"});
  if (plan.interrupted()) copy(plan, {"interrupted"});
  if (plan.passes_size() > 0) {
    std::string passes;
    for (const v1::Pass& pass : plan.passes()) {
      passes += (passes.empty() ? "[\n    " : ",\n    ") + PassText(pass);
    }
    add("passes", passes + "]");
  }
  if (!fits) {
    const v1::Infeasible& why = plan.infeasible();
    if (Undecided(plan)) add("undecided", "true");
    copy(why, {"smallest_budget_bytes", "blocking_op", "blocking_op_name"});
    if (!why.blocking_module().empty()) copy(why, {"blocking_module"});
    if (why.smallest_known_bytes() > 0) copy(why, {"smallest_known_bytes"});
  }
  copy(plan, {"sentence", "saved", "recomputed_ops"});
  add("schedule", ScheduleText(plan));
  if (plan.has_certificate()) add("proof", WriteProof(plan.certificate()));
  return text + " }\n";
}

// ---- Reading ---------------------------------------------------------------

namespace {

void ReadSchedule(JsonFields& in, bool needed, v1::Plan& to) {
  const Json* value = in.List(needed, "schedule");
  for (size_t i = 0; value != nullptr && i < value->size(); ++i) {
    const Json& entry = (*value)[i];
    const bool pair =
        entry.is_array() && entry.size() == 2 && entry[0].is_string();
    const auto id =
        pair ? JsonFields::Integer(entry[1], JsonFields::kMaxId) : std::nullopt;
    const std::string what = pair ? entry[0].get<std::string>() : "";
    const auto kind = std::find(kKinds.begin(), kKinds.end(), what);
    // Not *id: with the thread sanitizer, GCC 12 considers that
    // uninitialized.
    const int64_t number = id.value_or(planner::kMaxOps);
    if (kind == kKinds.end() || number >= int64_t{planner::kMaxOps}) {
      return in.Fail(
          StrCat("schedule[", i,
                 "]: must be [\"exec\", op] or [\"free\", storage]; or "
                 "send, sent, fetch, fetched and a storage"));
    }
    to.add_schedule(planner::CodeOf(
        {static_cast<planner::Entry::Kind>(kind - kKinds.begin()),
         static_cast<int32_t>(number)}));
  }
}

}  // namespace

StatusOr<PlanText> ReadPlanText(std::string_view text) {
  if (text.size() > kMaxPlanTextBytes) {
    return InvalidArgument(StrCat("plan: at most ", kMaxPlanTextBytes,
                                  " bytes are accepted, got ", text.size()));
  }
  ASSIGN_OR_RETURN(const JsonScan scan, ScanJson(text));
  if (scan.format != kPlanFormat) {
    return InvalidArgument(StrCat("format: must be \"", kPlanFormat,
                                  "\", got \"", scan.format.substr(0, 40),
                                  "\""));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("not a JSON object");

  PlanText out;
  v1::Plan& plan = out.plan;
  JsonFields in(json, plan);
  if (!json.contains("graph") || !json["graph"].is_string()) {
    return InvalidArgument("graph: must be a string");
  }
  out.graph = json["graph"].get<std::string>();
  in.Read(true,
          {"budget_bytes", "feasible", "base_peak_bytes", "base_time_ns"});
  in.Read(false, {"graph_id", "plan_id", "executor", "budget", "inferred",
                  "solver", "solve_ms", "ticks", "interrupted", "sentence"});
  RETURN_IF_ERROR(in.status());
  const bool fits = plan.feasible();
  in.Read(fits, {"peak_bytes", "time_ns", "overhead", "bound", "proven_optimal",
                 "saved", "recomputed_ops"});
  in.Word(false, "free_policy", kPolicies);
  in.Word(fits, "bound_scope", kScopes);
  in.Word(false, "bound_proof", kProofs);
  ReadSchedule(in, fits, plan);
  if (const auto link = json.find("link"); link != json.end()) {
    in.Inside(
        *link, "link", *plan.mutable_link(),
        {"out_bytes_per_s", "in_bytes_per_s", "latency_ns", "host_bytes"});
    in.Read(true, {"host_peak_bytes"});
  }
  if (!fits) {
    JsonFields why(json, *plan.mutable_infeasible());
    why.Read(true, {"smallest_budget_bytes", "blocking_op"});
    why.Read(false,
             {"blocking_op_name", "blocking_module", "smallest_known_bytes"});
    RETURN_IF_ERROR(why.status());
  }
  const Json* passes = in.List(false, "passes");
  for (size_t i = 0; passes != nullptr && i < passes->size(); ++i) {
    in.Inside((*passes)[i], StrCat("passes[", i, "]"), *plan.add_passes(),
              {"name", "runs", "ticks", "overhead_gain", "bound_gain"},
              {"first_overhead"});
  }
  RETURN_IF_ERROR(in.status());
  if (json.contains("proof")) {
    ASSIGN_OR_RETURN(*plan.mutable_certificate(), ReadProof(json["proof"]));
  }
  if (plan.sentence().empty()) plan.set_sentence(PlanSentence(plan));
  return out;
}

}  // namespace reprise::formats
