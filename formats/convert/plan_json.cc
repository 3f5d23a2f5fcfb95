// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/plan_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/graph_json.h"
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

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- Reading ---------------------------------------------------------------

// Reads the keys of one object and keeps the first error.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  template <typename Set>
  void Number(const char* key, bool needed, int64_t most, Set set) {
    const Json* value = Find(key, needed);
    if (value == nullptr) return;
    if (const auto number = Integer(*value, most)) {
      set(*number);
    } else {
      Fail(StrCat(key, ": must be an integer from 0 to ", most));
    }
  }
  template <typename Set>
  void Fraction(const char* key, bool needed, Set set) {
    const Json* value = Find(key, needed);
    if (value == nullptr) return;
    if (value->is_number() && std::isfinite(value->get<double>())) {
      set(value->get<double>());
    } else {
      Fail(StrCat(key, ": must be a number"));
    }
  }
  template <typename Set>
  void Text(const char* key, bool needed, Set set) {
    const Json* value = Find(key, needed);
    if (value == nullptr) return;
    if (value->is_string()) {
      set(value->get<std::string>());
    } else {
      Fail(StrCat(key, ": must be a string"));
    }
  }
  template <typename Set>
  void Flag(const char* key, bool needed, Set set) {
    const Json* value = Find(key, needed);
    if (value == nullptr) return;
    if (value->is_boolean()) {
      set(value->get<bool>());
    } else {
      Fail(StrCat(key, ": must be true or false"));
    }
  }
  template <typename Set>
  void Ids(const char* key, bool needed, Set set) {
    const Json* value = Find(key, needed);
    if (value == nullptr) return;
    if (!value->is_array()) return Fail(StrCat(key, ": must be a list of ids"));
    for (size_t i = 0; i < value->size(); ++i) {
      const auto id = Integer((*value)[i], kMaxId);
      if (!id) return Fail(StrCat(key, "[", i, "]: must be an id"));
      set(static_cast<uint32_t>(*id));
    }
  }
  void Schedule(bool needed, v1::Plan& to) {
    const Json* value = Find("schedule", needed);
    if (value == nullptr) return;
    if (!value->is_array()) return Fail("schedule: must be a list");
    for (size_t i = 0; i < value->size(); ++i) {
      const Json& entry = (*value)[i];
      const bool pair =
          entry.is_array() && entry.size() == 2 && entry[0].is_string();
      const auto id = pair ? Integer(entry[1], kMaxId) : std::nullopt;
      const std::string what = pair ? entry[0].get<std::string>() : "";
      const auto kind = std::find(kKinds.begin(), kKinds.end(), what);
      // Not *id: with the thread sanitizer, GCC 12 considers that
      // uninitialized.
      const int64_t number = id.value_or(planner::kMaxOps);
      if (kind == kKinds.end() || number >= int64_t{planner::kMaxOps}) {
        return Fail(
            StrCat("schedule[", i,
                   "]: must be [\"exec\", op] or [\"free\", storage]; or "
                   "send, sent, fetch, fetched and a storage"));
      }
      to.add_schedule(planner::CodeOf(
          {static_cast<planner::Entry::Kind>(kind - kKinds.begin()),
           static_cast<int32_t>(number)}));
    }
  }
  void Passes(v1::Plan& to) {
    const Json* value = Find("passes", false);
    if (value == nullptr) return;
    if (!value->is_array()) return Fail("passes: must be a list");
    for (size_t i = 0; i < value->size(); ++i) {
      const Json& object = (*value)[i];
      if (!object.is_object()) {
        return Fail(StrCat("passes[", i, "]: must be an object"));
      }
      v1::Pass& pass = *to.add_passes();
      Fields in(object);
      in.Text("name", true, [&](const std::string& s) { pass.set_name(s); });
      in.Number("runs", true, kMaxId,
                [&](int64_t n) { pass.set_runs(static_cast<uint32_t>(n)); });
      in.Number("ticks", true, std::numeric_limits<int64_t>::max(),
                [&](int64_t n) { pass.set_ticks(n); });
      in.Fraction("first_overhead", false,
                  [&](double x) { pass.set_first_overhead(x); });
      in.Fraction("overhead_gain", true,
                  [&](double x) { pass.set_overhead_gain(x); });
      in.Fraction("bound_gain", true,
                  [&](double x) { pass.set_bound_gain(x); });
      if (!in.status().ok()) {
        return Fail(StrCat("passes[", i, "].", in.status().message()));
      }
    }
  }
  void Fail(std::string message) {
    if (status_.ok()) status_ = InvalidArgument(std::move(message));
  }
  const Status& status() const { return status_; }

  static constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

 private:
  const Json* Find(const char* key, bool needed) {
    const auto it = object_.find(key);
    if (it != object_.end() && !it->is_null()) return &*it;
    if (needed) Fail(StrCat(key, ": missing"));
    return nullptr;
  }
  static std::optional<int64_t> Integer(const Json& value, int64_t most) {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned() &&
        value.get<uint64_t>() > static_cast<uint64_t>(most)) {
      return std::nullopt;
    }
    const auto number = value.get<int64_t>();
    if (number < 0) return std::nullopt;
    return number;
  }

  const Json& object_;
  Status status_;
};

}  // namespace

namespace {

std::string PassesText(const v1::Plan& plan) {
  std::string text;
  for (const v1::Pass& pass : plan.passes()) {
    text += StrCat(text.empty() ? "[\n    " : ",\n    ",
                   "{ \"name\": ", Dump(pass.name()),
                   ", \"runs\": ", pass.runs(), ", \"ticks\": ", pass.ticks());
    if (pass.has_first_overhead()) {
      text += StrCat(", \"first_overhead\": ", Dump(pass.first_overhead()));
    }
    text += StrCat(", \"overhead_gain\": ", Dump(pass.overhead_gain()),
                   ", \"bound_gain\": ", Dump(pass.bound_gain()), " }");
  }
  return text + "]";
}

}  // namespace

std::string WritePlanText(const v1::Plan& plan, std::string_view graph) {
  std::string text;
  const auto add = [&text](const char* key, const std::string& value) {
    text += StrCat(text.empty() ? "{ \"" : ",\n  \"", key, "\": ", value);
  };
  const auto list = [](const auto& ids) {
    std::string out = "[";
    for (int i = 0; i < ids.size(); ++i) {
      out += StrCat(i == 0 ? "" : ", ", ids[i]);
    }
    return out + "]";
  };
  const auto number = [](int64_t n) { return std::to_string(n); };
  const auto flag = [](bool b) { return std::string(b ? "true" : "false"); };

  add("format", Dump(kPlanFormat));
  add("graph", Dump(graph));
  add("graph_id", Dump(plan.graph_id()));
  add("plan_id", Dump(plan.plan_id()));
  if (!plan.executor().empty()) add("executor", Dump(plan.executor()));
  add("free_policy", plan.free_policy() == v1::FREE_POLICY_PROGRAM
                         ? "\"program\""
                         : "\"eager\"");
  if (plan.has_link()) {
    const v1::Link& link = plan.link();
    add("link", StrCat("{ \"out_bytes_per_s\": ", link.out_bytes_per_s(),
                       ", \"in_bytes_per_s\": ", link.in_bytes_per_s(),
                       ", \"latency_ns\": ", link.latency_ns(),
                       ", \"host_bytes\": ", link.host_bytes(), " }"));
    add("host_peak_bytes", number(plan.host_peak_bytes()));
  }
  add("budget", Dump(plan.budget()));
  add("budget_bytes", number(plan.budget_bytes()));
  add("feasible", flag(plan.feasible()));
  if (plan.feasible()) add("peak_bytes", number(plan.peak_bytes()));
  add("base_peak_bytes", number(plan.base_peak_bytes()));
  if (plan.feasible()) add("time_ns", number(plan.time_ns()));
  add("base_time_ns", number(plan.base_time_ns()));
  if (plan.feasible()) {
    add("overhead", Dump(plan.overhead()));
    add("bound", Dump(plan.bound()));
    add("bound_scope", "\"order\"");
    add("proven_optimal", flag(plan.proven_optimal()));
  }
  if (!plan.inferred().empty()) add("inferred", Dump(plan.inferred()));
  add("bound_proof",
      plan.bound_proof() == v1::BOUND_PROOF_CHECKED  ? "\"checked\""
      : plan.bound_proof() == v1::BOUND_PROOF_SOLVER ? "\"solver\""
                                                     : "\"none\"");
  add("solver", Dump(plan.solver()));
  add("solve_ms", Dump(std::round(plan.solve_ms() * 1000) / 1000));
  add("ticks", number(plan.ticks()));
  if (plan.interrupted()) add("interrupted", "true");
  if (plan.passes_size() > 0) add("passes", PassesText(plan));
  if (!plan.feasible()) {
    const v1::Infeasible& why = plan.infeasible();
    if (Undecided(plan)) add("undecided", "true");
    add("smallest_budget_bytes", number(why.smallest_budget_bytes()));
    add("blocking_op", number(why.blocking_op()));
    add("blocking_op_name", Dump(why.blocking_op_name()));
    if (!why.blocking_module().empty()) {
      add("blocking_module", Dump(why.blocking_module()));
    }
    if (why.smallest_known_bytes() > 0) {
      add("smallest_known_bytes", number(why.smallest_known_bytes()));
    }
  }
  add("sentence", Dump(plan.sentence()));
  add("saved", list(plan.saved()));
  add("recomputed_ops", list(plan.recomputed_ops()));
  std::string schedule = "[";
  for (int i = 0; i < plan.schedule_size(); ++i) {
    const int64_t entry = plan.schedule(i);
    schedule += i == 0 ? "" : i % 8 == 0 ? ",\n    " : ", ";
    const auto [kind, id] = planner::EntryOf(entry).value_or(planner::Entry{});
    schedule +=
        StrCat("[\"", kKinds[static_cast<size_t>(kind)], "\", ", id, "]");
  }
  add("schedule", schedule + "]");
  if (plan.has_certificate()) add("proof", WriteProof(plan.certificate()));
  return text + " }\n";
}

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
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Fields in(json);
  in.Text("graph", true, [&](std::string s) { out.graph = std::move(s); });
  in.Text("graph_id", false, [&](std::string s) { plan.set_graph_id(s); });
  in.Text("plan_id", false, [&](std::string s) { plan.set_plan_id(s); });
  in.Text("executor", false, [&](std::string s) { plan.set_executor(s); });
  in.Text("free_policy", false, [&](const std::string& s) {
    plan.set_free_policy(s == "program" ? v1::FREE_POLICY_PROGRAM
                                        : v1::FREE_POLICY_EAGER);
    if (s != "program" && s != "eager") {
      in.Fail("free_policy: must be eager or program");
    }
  });
  if (const auto link = json.find("link"); link != json.end()) {
    if (!link->is_object()) return InvalidArgument("link: must be an object");
    v1::Link& to = *plan.mutable_link();
    Fields of(*link);
    of.Number("out_bytes_per_s", true, kMost,
              [&](int64_t n) { to.set_out_bytes_per_s(n); });
    of.Number("in_bytes_per_s", true, kMost,
              [&](int64_t n) { to.set_in_bytes_per_s(n); });
    of.Number("latency_ns", true, kMost,
              [&](int64_t n) { to.set_latency_ns(n); });
    of.Number("host_bytes", true, kMost,
              [&](int64_t n) { to.set_host_bytes(n); });
    if (!of.status().ok()) in.Fail(StrCat("link.", of.status().message()));
    in.Number("host_peak_bytes", true, kMost,
              [&](int64_t n) { plan.set_host_peak_bytes(n); });
  }
  in.Text("budget", false, [&](std::string s) { plan.set_budget(s); });
  in.Number("budget_bytes", true, kMost,
            [&](int64_t n) { plan.set_budget_bytes(n); });
  in.Flag("feasible", true, [&](bool b) { plan.set_feasible(b); });
  const bool fits = plan.feasible();
  in.Number("peak_bytes", fits, kMost,
            [&](int64_t n) { plan.set_peak_bytes(n); });
  in.Number("base_peak_bytes", true, kMost,
            [&](int64_t n) { plan.set_base_peak_bytes(n); });
  in.Number("time_ns", fits, kMost, [&](int64_t n) { plan.set_time_ns(n); });
  in.Number("base_time_ns", true, kMost,
            [&](int64_t n) { plan.set_base_time_ns(n); });
  in.Fraction("overhead", fits, [&](double x) { plan.set_overhead(x); });
  in.Fraction("bound", fits, [&](double x) { plan.set_bound(x); });
  in.Text("bound_scope", fits, [&](const std::string& s) {
    plan.set_bound_scope(v1::BOUND_SCOPE_ORDER);
    if (s != "order") in.Fail("bound_scope: must be order");
  });
  in.Flag("proven_optimal", fits, [&](bool b) { plan.set_proven_optimal(b); });
  in.Text("inferred", false, [&](std::string s) { plan.set_inferred(s); });
  in.Text("solver", false, [&](std::string s) { plan.set_solver(s); });
  in.Fraction("solve_ms", false, [&](double x) { plan.set_solve_ms(x); });
  in.Number("ticks", false, kMost, [&](int64_t n) { plan.set_ticks(n); });
  in.Flag("interrupted", false, [&](bool b) { plan.set_interrupted(b); });
  if (!fits) {
    v1::Infeasible& why = *plan.mutable_infeasible();
    in.Number("smallest_budget_bytes", true, kMost,
              [&](int64_t n) { why.set_smallest_budget_bytes(n); });
    in.Number("blocking_op", true, Fields::kMaxId, [&](int64_t n) {
      why.set_blocking_op(static_cast<uint32_t>(n));
    });
    in.Text("blocking_op_name", false,
            [&](std::string s) { why.set_blocking_op_name(s); });
    in.Text("blocking_module", false,
            [&](std::string s) { why.set_blocking_module(s); });
    in.Number("smallest_known_bytes", false, kMost,
              [&](int64_t n) { why.set_smallest_known_bytes(n); });
  }
  in.Text("sentence", false, [&](std::string s) { plan.set_sentence(s); });
  in.Ids("saved", fits, [&](uint32_t id) { plan.add_saved(id); });
  in.Ids("recomputed_ops", fits,
         [&](uint32_t id) { plan.add_recomputed_ops(id); });
  in.Schedule(fits, plan);
  in.Passes(plan);
  in.Text("bound_proof", false, [&](const std::string& s) {
    plan.set_bound_proof(s == "checked"  ? v1::BOUND_PROOF_CHECKED
                         : s == "solver" ? v1::BOUND_PROOF_SOLVER
                                         : v1::BOUND_PROOF_NONE);
    if (s != "checked" && s != "solver" && s != "none") {
      in.Fail("bound_proof: must be checked, solver or none");
    }
  });
  RETURN_IF_ERROR(in.status());
  if (json.contains("proof")) {
    ASSIGN_OR_RETURN(*plan.mutable_certificate(), ReadProof(json["proof"]));
  }
  if (plan.sentence().empty()) plan.set_sentence(PlanSentence(plan));
  return out;
}

}  // namespace reprise::formats
