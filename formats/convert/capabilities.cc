// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/capabilities.h"

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/str_cat.h"

namespace reprise::formats {
namespace {

// Returns the text up to `separator` and removes both from `rest`.
std::string_view TakeUpTo(char separator, std::string_view& rest) {
  const size_t at = rest.find(separator);
  const std::string_view head = rest.substr(0, at);
  rest = at == std::string_view::npos ? "" : rest.substr(at + 1);
  return head;
}

std::optional<v1::Capabilities> Preset(std::string_view name) {
  v1::Capabilities preset;
  if (name == "tape") {
    preset.set_executor("tape");
    preset.set_recompute_in_backward_only(true);
    preset.set_duplicate_outputs(true);
    preset.set_free_policy(v1::FREE_POLICY_PROGRAM);
    return preset;
  }
  if (name == "graph") {
    preset.set_executor("graph");
    preset.set_seeded_ok(true);
    preset.set_duplicate_outputs(true);
    preset.set_free_policy(v1::FREE_POLICY_EAGER);
    return preset;
  }
  // A TensorFlow graph, rewritten: a copy makes all of its outputs anew.
  if (name == "tf-graph") {
    preset.set_executor("tf-graph");
    preset.set_duplicate_outputs(true);
    preset.set_free_policy(v1::FREE_POLICY_EAGER);
    return preset;
  }
  if (name == "once" || name == "joint") {
    preset.set_executor(std::string(name));
    preset.set_recompute_in_backward_only(true);
    preset.set_execution(v1::EXECUTION_ONCE);
    preset.set_free_policy(v1::FREE_POLICY_EAGER);
    return preset;
  }
  if (name == "free" || name.empty()) {
    preset.set_free_policy(v1::FREE_POLICY_EAGER);
    return preset;
  }
  return std::nullopt;
}

StatusOr<int64_t> Number(std::string_view key, std::string_view value,
                         int64_t most) {
  int64_t number = 0;
  const auto [end, error] =
      std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() ||
      number < 0 || number > most) {
    return InvalidArgument(StrCat("capabilities: ", key, "=",
                                  value.substr(0, 40),
                                  ": must be an integer from 0 to ", most));
  }
  return number;
}

Status ApplyKey(std::string_view key, std::string_view value,
                v1::Capabilities& to) {
  constexpr int64_t kMaxRuns = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMaxNs = int64_t{1} << 50, kMaxLink = kMaxNs;
  if (key == "free_policy") {
    if (value == "program") {
      to.set_free_policy(v1::FREE_POLICY_PROGRAM);
    } else if (value == "eager") {
      to.set_free_policy(v1::FREE_POLICY_EAGER);
    } else {
      return InvalidArgument(
          StrCat("capabilities: free_policy=", value.substr(0, 40),
                 ": must be eager or program"));
    }
    return OkStatus();
  }
  if (key == "max_runs") {
    ASSIGN_OR_RETURN(const int64_t runs, Number(key, value, kMaxRuns));
    to.set_max_runs(static_cast<uint32_t>(runs));
    return OkStatus();
  }
  if (key == "ns_per_op") {
    ASSIGN_OR_RETURN(const int64_t ns, Number(key, value, kMaxNs));
    to.set_ns_per_op(ns);
    return OkStatus();
  }
  using LinkSetter = void (v1::Link::*)(int64_t);
  const std::pair<std::string_view, LinkSetter> kLink[] = {
      {"out_bytes_per_s", &v1::Link::set_out_bytes_per_s},
      {"in_bytes_per_s", &v1::Link::set_in_bytes_per_s},
      {"latency_ns", &v1::Link::set_latency_ns},
      {"host_bytes", &v1::Link::set_host_bytes},
  };
  for (const auto& [name, set] : kLink) {
    if (key != name) continue;
    ASSIGN_OR_RETURN(const int64_t number, Number(key, value, kMaxLink));
    (to.mutable_link()->*set)(number);
    return OkStatus();
  }
  using Setter = void (v1::Capabilities::*)(bool);
  const std::pair<std::string_view, Setter> kFlags[] = {
      {"recompute_in_backward_only",
       &v1::Capabilities::set_recompute_in_backward_only},
      {"seeded_ok", &v1::Capabilities::set_seeded_ok},
      {"collective_ok", &v1::Capabilities::set_collective_ok},
      {"duplicate_outputs", &v1::Capabilities::set_duplicate_outputs},
  };
  for (const auto& [name, set] : kFlags) {
    if (key != name) continue;
    ASSIGN_OR_RETURN(const int64_t flag, Number(key, value, 1));
    (to.*set)(flag == 1);
    return OkStatus();
  }
  return InvalidArgument(
      StrCat("capabilities: unknown key \"", key.substr(0, 40), "\""));
}

// Whether an executor ran regions of the forward again, or is of a later
// version.
bool IsGone(const v1::Capabilities& proto) {
  return proto.executor() == "nested" || proto.executor() == "region" ||
         !v1::Execution_IsValid(proto.execution());
}

}  // namespace

v1::Capabilities WalkedAs(v1::Capabilities stored) {
  if (!IsGone(stored)) return stored;
  const bool region = stored.executor() == "region";
  stored.set_executor(region ? "tape" : "free");
  stored.set_execution(v1::EXECUTION_FREE);
  return stored;
}

std::string KnownExecutors() {
  return "tape, graph, tf-graph, joint, free and once";
}

StatusOr<v1::Capabilities> ParseCapabilities(std::string_view text) {
  std::string_view executors = text;
  do {
    std::string_view keys = TakeUpTo(',', executors);
    std::optional<v1::Capabilities> chosen = Preset(TakeUpTo(':', keys));
    if (!chosen) continue;
    while (!keys.empty()) {
      std::string_view value = TakeUpTo(':', keys);
      const std::string_view key = TakeUpTo('=', value);
      RETURN_IF_ERROR(ApplyKey(key, value, *chosen));
    }
    return *std::move(chosen);
  } while (!executors.empty());
  return InvalidArgument(StrCat("capabilities: no known executor in \"",
                                text.substr(0, 80), "\"; known are ",
                                KnownExecutors()));
}

StatusOr<planner::Capabilities> ToPlanner(const v1::Capabilities& proto) {
  if (proto.max_runs() > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument(
        StrCat("capabilities.max_runs: too large, got ", proto.max_runs()));
  }
  if (proto.ns_per_op() < 0 || proto.ns_per_op() > (int64_t{1} << 50)) {
    return InvalidArgument(
        StrCat("capabilities.ns_per_op: must be from 0 to 2^50, got ",
               proto.ns_per_op()));
  }
  const v1::Link& link = proto.link();
  for (const int64_t number : {link.out_bytes_per_s(), link.in_bytes_per_s(),
                               link.latency_ns(), link.host_bytes()}) {
    if (number < 0 || number > (int64_t{1} << 50)) {
      return InvalidArgument(StrCat(
          "capabilities.link: must be numbers from 0 to 2^50, got ", number));
    }
  }
  v1::FreePolicy policy = proto.free_policy();
  if (policy == v1::FREE_POLICY_UNSPECIFIED) {
    const std::optional<v1::Capabilities> preset = Preset(proto.executor());
    policy = preset ? preset->free_policy() : v1::FREE_POLICY_EAGER;
  }
  v1::Execution execution = proto.execution();
  if (execution == v1::EXECUTION_UNSPECIFIED) {
    const std::optional<v1::Capabilities> preset = Preset(proto.executor());
    execution = preset ? preset->execution() : v1::EXECUTION_FREE;
  }
  if (IsGone(proto)) {
    return InvalidArgument(
        StrCat("capabilities: no known executor in \"",
               proto.executor().empty()
                   ? StrCat("execution ", static_cast<int>(execution))
                   : proto.executor(),
               "\"; known are ", KnownExecutors()));
  }
  if (policy != v1::FREE_POLICY_EAGER && policy != v1::FREE_POLICY_PROGRAM) {
    return InvalidArgument(StrCat("capabilities.free_policy: unknown value ",
                                  static_cast<int>(policy)));
  }
  return planner::Capabilities{
      .max_runs = static_cast<int>(proto.max_runs()),
      .recompute_in_backward_only = proto.recompute_in_backward_only(),
      .seeded_ok = proto.seeded_ok(),
      .collective_ok = proto.collective_ok(),
      .duplicate_outputs = proto.duplicate_outputs(),
      .free_policy = policy == v1::FREE_POLICY_PROGRAM
                         ? planner::FreePolicy::kProgram
                         : planner::FreePolicy::kEager,
      .ns_per_op = proto.ns_per_op(),
      .execution = execution == v1::EXECUTION_ONCE ? planner::Execution::kOnce
                                                   : planner::Execution::kFree,
      .link = {.out_bytes_per_s = link.out_bytes_per_s(),
               .in_bytes_per_s = link.in_bytes_per_s(),
               .latency_ns = link.latency_ns(),
               .host_bytes = link.host_bytes()},
  };
}

}  // namespace reprise::formats
