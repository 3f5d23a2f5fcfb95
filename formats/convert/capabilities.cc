// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/capabilities.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "base/str_cat.h"

namespace reprise::formats {
namespace {

using google::protobuf::FieldDescriptor;

// Returns the text up to `separator` and removes both from `rest`.
std::string_view TakeUpTo(char separator, std::string_view& rest) {
  const size_t at = rest.find(separator);
  const std::string_view head = rest.substr(0, at);
  rest = at == std::string_view::npos ? "" : rest.substr(at + 1);
  return head;
}

struct PresetOf {
  std::string_view name;
  bool backward_only, seeded, duplicates;
  v1::FreePolicy frees = v1::FREE_POLICY_EAGER;
  v1::Execution execution = v1::EXECUTION_UNSPECIFIED;
};
constexpr PresetOf kPresets[] = {
    {"tape", true, false, true, v1::FREE_POLICY_PROGRAM},
    {"graph", false, true, true},
    // A TensorFlow graph, rewritten: a copy makes all of its outputs anew.
    {"tf-graph", false, false, true},
    {"once", true, false, false, v1::FREE_POLICY_EAGER, v1::EXECUTION_ONCE},
    {"joint", true, false, false, v1::FREE_POLICY_EAGER, v1::EXECUTION_ONCE},
    {"free", false, false, false}};

std::optional<v1::Capabilities> Preset(std::string_view name) {
  if (name.empty()) name = "free";
  for (const PresetOf& preset : kPresets) {
    if (preset.name != name) continue;
    v1::Capabilities made;
    if (name != "free") made.set_executor(std::string(name));
    made.set_recompute_in_backward_only(preset.backward_only);
    made.set_seeded_ok(preset.seeded);
    made.set_duplicate_outputs(preset.duplicates);
    made.set_free_policy(preset.frees);
    made.set_execution(preset.execution);
    return made;
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
  if (key == "free_policy") {
    to.set_free_policy(value == "program" ? v1::FREE_POLICY_PROGRAM
                                          : v1::FREE_POLICY_EAGER);
    if (value == "program" || value == "eager") return OkStatus();
    return InvalidArgument(
        StrCat("capabilities: free_policy=", value.substr(0, 40),
               ": must be eager or program"));
  }
  // The other keys are the fields with a number, of the capabilities or the
  // link.
  google::protobuf::Message* into = &to;
  const auto* field = to.GetDescriptor()->FindFieldByName(std::string(key));
  if (field == nullptr) {
    field = v1::Link::descriptor()->FindFieldByName(std::string(key));
    if (field != nullptr) into = to.mutable_link();
  }
  const auto type =
      field == nullptr ? FieldDescriptor::CPPTYPE_MESSAGE : field->cpp_type();
  const int64_t most = type == FieldDescriptor::CPPTYPE_BOOL ? 1
                       : type == FieldDescriptor::CPPTYPE_UINT32
                           ? std::numeric_limits<int>::max()
                       : type == FieldDescriptor::CPPTYPE_INT64
                           ? int64_t{1} << 50
                           : 0;
  if (most == 0) {
    return InvalidArgument(
        StrCat("capabilities: unknown key \"", key.substr(0, 40), "\""));
  }
  ASSIGN_OR_RETURN(const int64_t number, Number(key, value, most));
  const auto* fields = into->GetReflection();
  if (type == FieldDescriptor::CPPTYPE_BOOL) {
    fields->SetBool(into, field, number == 1);
  } else if (type == FieldDescriptor::CPPTYPE_UINT32) {
    fields->SetUInt32(into, field, static_cast<uint32_t>(number));
  } else {
    fields->SetInt64(into, field, number);
  }
  return OkStatus();
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

planner::Link LinkOf(const v1::Link& link) {
  return {.out_bytes_per_s = link.out_bytes_per_s(),
          .in_bytes_per_s = link.in_bytes_per_s(),
          .latency_ns = link.latency_ns(),
          .host_bytes = link.host_bytes()};
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
      .link = LinkOf(link),
  };
}

}  // namespace reprise::formats
