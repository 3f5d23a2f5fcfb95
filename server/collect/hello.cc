// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string_view>

#include "base/str_cat.h"
#include "profiler/include/reprise_wire.h"
#include "server/collect/agent_session.h"

namespace reprise::server {
namespace {

constexpr size_t kMaxLabels = 64;
constexpr size_t kMaxLabelBytes = 1024;

template <size_t n>
StatusOr<std::string_view> ZeroTerminated(const char (&field)[n],
                                          std::string_view name) {
  const void* end = std::memchr(field, 0, n);
  if (end == nullptr) {
    return InvalidArgument(StrCat("hello.", name, ": is not zero-terminated"));
  }
  return std::string_view(
      field, static_cast<size_t>(static_cast<const char*>(end) - field));
}

// Parses "key=value" lines; a line without a key is skipped.
void AddLabels(std::string_view text, v1::SessionInfo& info) {
  while (!text.empty() && info.labels().size() < kMaxLabels) {
    const size_t end = text.find_first_of(std::string_view("\n\0", 2));
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    (*info.mutable_labels())[ValidUtf8(line.substr(0, equals),
                                       kMaxLabelBytes)] =
        ValidUtf8(line.substr(equals + 1), kMaxLabelBytes);
  }
}

// Words for the levels of reprise_caps.cupti.
std::string_view CuptiWords(std::string_view level) {
  if (level == "0") return "no";
  if (level == "1") return "no, allocations only";
  if (level == "2") return "kernels";
  if (level == "3") return "kernels and ops";
  return level;
}

}  // namespace

StatusOr<AgentHello> ParseHello(const Message& message, const Peer& peer) {
  if (message.type != REPRISE_MSG_HELLO) {
    return InvalidArgument(StrCat(
        "hello: expected as the first message, got type ", message.type));
  }
  reprise_msg_hello raw;
  if (message.body.size() < sizeof(raw)) {
    return InvalidArgument(StrCat("hello: needs ", sizeof(raw), " bytes, got ",
                                  message.body.size()));
  }
  std::memcpy(&raw, message.body.data(), sizeof(raw));
  if (raw.abi != REPRISE_ABI) {
    return InvalidArgument(StrCat("hello.abi: the agent has ", raw.abi,
                                  ", this daemon speaks ", REPRISE_ABI,
                                  "; update the older one"));
  }
  if (raw.ring_layout != REPRISE_RING_LAYOUT) {
    return InvalidArgument(StrCat(
        "hello.ring_layout: the agent has ", raw.ring_layout,
        ", this daemon reads ", REPRISE_RING_LAYOUT, "; update the older one"));
  }
  if (raw.labels_bytes != message.body.size() - sizeof(raw)) {
    return InvalidArgument(StrCat("hello.labels_bytes: says ", raw.labels_bytes,
                                  ", came with ",
                                  message.body.size() - sizeof(raw)));
  }
  if (message.fds.size() != 1) {
    return InvalidArgument(StrCat("hello: needs the ring as its one file, got ",
                                  message.fds.size()));
  }
  ASSIGN_OR_RETURN(const std::string_view session,
                   ZeroTerminated(raw.session_id, "session_id"));
  ASSIGN_OR_RETURN(const std::string_view run,
                   ZeroTerminated(raw.run_id, "run_id"));
  ASSIGN_OR_RETURN(const std::string_view boot,
                   ZeroTerminated(raw.boot_id, "boot_id"));
  ASSIGN_OR_RETURN(const std::string_view host,
                   ZeroTerminated(raw.host, "host"));
  if (!IsUuid(session)) {
    return InvalidArgument("hello.session_id: is not a UUID");
  }
  if (!IsPlainId(run, sizeof(raw.run_id) - 1)) {
    return InvalidArgument(
        "hello.run_id: must be 1 to 71 letters, digits or ._:-; "
        "choose another REPRISE_RUN_ID");
  }
  // The difference of any two times within this limit fits into 64 bits.
  constexpr int64_t kLargest = int64_t{1} << 62;
  if (raw.monotonic_ns < 0 || raw.monotonic_ns > kLargest ||
      raw.realtime_ns < 0 || raw.realtime_ns > kLargest ||
      raw.pid_start_ticks > uint64_t{kLargest}) {
    return InvalidArgument("hello: a clock is out of range");
  }

  AgentHello hello;
  hello.session_id = session;
  hello.run_id = run;
  hello.slots = raw.slots;
  hello.realtime_to_monotonic_ns = raw.monotonic_ns - raw.realtime_ns;
  hello.info.set_host(ValidUtf8(host, sizeof(raw.host)));
  hello.info.set_pid(raw.pid);
  hello.info.set_pid_start_ticks(raw.pid_start_ticks);
  hello.info.set_boot_id(ValidUtf8(boot, sizeof(raw.boot_id)));
  hello.info.set_rank(raw.rank);
  hello.info.set_local_rank(raw.local_rank);
  hello.info.set_world(raw.world);
  hello.info.set_monotonic_ns(raw.monotonic_ns);
  hello.info.set_realtime_ns(raw.realtime_ns);
  hello.info.set_uid(peer.uid);
  AddLabels(std::string_view(message.body).substr(sizeof(raw)), hello.info);
  return hello;
}

v1::Caps CapabilitiesOf(const std::vector<std::string>& lines) {
  v1::Caps caps;
  for (const std::string& text : lines) {
    const std::string_view line = text;
    const size_t equals = line.find('=');
    const std::string_view name = line.substr(0, equals);
    std::string_view value;
    std::string_view why;
    if (equals != std::string_view::npos) value = line.substr(equals + 1);
    // A holder's name may have spaces; the others have a value and a reason.
    const size_t space =
        name == "cupti_holder" ? std::string_view::npos : value.find(' ');
    if (space != std::string_view::npos) {
      why = value.substr(space + 1);
      value = value.substr(0, space);
    }
    // No drops, or no version: omit the line.
    const bool silent = why.empty() && (value.empty() || value == "0");
    if (name.empty() || silent) continue;
    v1::Capability& one = *caps.add_capabilities();
    one.set_name(std::string(name));
    one.set_value(std::string(name == "cupti" ? CuptiWords(value) : value));
    one.set_why(std::string(why));
  }
  return caps;
}

}  // namespace reprise::server
