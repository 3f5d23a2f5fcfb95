// SPDX-License-Identifier: Apache-2.0
//
// Handles an agent's messages after HELLO, and sends it messages.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/digest.h"
#include "profiler/include/reprise_wire.h"
#include "server/collect/agent_session.h"

namespace reprise::server {

namespace {

constexpr size_t kMaxNames = 1 << 17;
constexpr size_t kMaxNamesBytes = 16 << 20;
constexpr size_t kMaxSentNameBytes = 4096;
constexpr size_t kMaxCapabilityLines = 64;
constexpr size_t kMaxCapabilityBytes = 512;
constexpr size_t kMaxOutbox = 64;
// Pending requests, and remembered answers, per session.
constexpr size_t kMaxAsked = 4;
constexpr size_t kMaxAnswers = 8;
constexpr std::chrono::seconds kGraphWait{2};
constexpr size_t kMaxSentenceBytes = 4096;
constexpr uint64_t kLargestBytes = uint64_t{1} << 62;

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Returns the text before the first zero byte.
std::string FirstText(std::string_view bytes) {
  return ValidUtf8(bytes.substr(0, bytes.find('\0')), bytes.size());
}

}  // namespace

Status AgentSession::Handle(Message message, Clock::time_point now) {
  switch (message.type) {
    case REPRISE_MSG_DEFS:
      return HandleNames(message.body);
    case REPRISE_MSG_CAPS:
      HandleCapabilities(message.body);
      return OkStatus();
    case REPRISE_MSG_BYE:
      return HandleBye(message.body, now);
    case REPRISE_MSG_GRAPH:
      return HandleGraph(message, now);
    case REPRISE_MSG_SNAPSHOT:
      HandleSnapshot(message);
      return OkStatus();
    default:
      return InvalidArgument(
          StrCat("message: type ", message.type, " is not for a collector"));
  }
}

Status AgentSession::HandleNames(std::string_view body) {
  while (!body.empty()) {
    uint32_t id_and_size[2];
    if (body.size() < sizeof(id_and_size)) {
      return InvalidArgument("defs: ends inside an entry");
    }
    std::memcpy(id_and_size, body.data(), sizeof(id_and_size));
    body.remove_prefix(sizeof(id_and_size));
    const auto [id, size] = id_and_size;
    const size_t padded = (size_t{size} + 3) & ~size_t{3};
    if (padded > body.size()) {
      return InvalidArgument(StrCat("defs: name #", id, " says ", size,
                                    " bytes, ", body.size(), " are left"));
    }
    AddName(id, body.substr(0, size));
    body.remove_prefix(padded);
  }
  return OkStatus();
}

void AgentSession::AddName(uint32_t id, std::string_view text) {
  // After a reconnection all names come again. An id keeps its first text.
  if (id == 0 || names_.contains(id)) return;
  if (names_.size() >= kMaxNames || names_bytes_ >= kMaxNamesBytes) {
    if (!std::exchange(names_full_, true)) {
      capabilities_.push_back(
          "names: the table is full, later ones show as "
          "numbers");
    }
    return;
  }
  std::string valid = ValidUtf8(text, kMaxSentNameBytes);
  names_bytes_ += valid.size();
  names_late_ = false;
  new_names_.push_back({.ordinal = ++last_name_, .name = id, .text = valid});
  names_.emplace(id, std::move(valid));
}

void AgentSession::HandleCapabilities(std::string_view body) {
  capabilities_.clear();
  capabilities_changed_ = true;
  while (!body.empty() && capabilities_.size() < kMaxCapabilityLines) {
    const size_t end = body.find_first_of(std::string_view("\n\0", 2));
    const std::string_view line = body.substr(0, end);
    if (!line.empty()) {
      capabilities_.push_back(ValidUtf8(line, kMaxCapabilityBytes));
    }
    body.remove_prefix(end == std::string_view::npos ? body.size() : end + 1);
  }
}

Status AgentSession::HandleBye(std::string_view body, Clock::time_point now) {
  reprise_msg_bye bye;
  if (body.size() != sizeof(bye)) {
    return InvalidArgument(
        StrCat("bye: needs ", sizeof(bye), " bytes, got ", body.size()));
  }
  std::memcpy(&bye, body.data(), sizeof(bye));
  bye_ = bye;
  bye_at_ = now;
  return OkStatus();
}

Status AgentSession::HandleGraph(Message& message, Clock::time_point now) {
  reprise_msg_graph raw{};
  const std::string_view body = message.body;
  if (body.size() < REPRISE_MSG_GRAPH_LEAST || message.fds.size() != 1) {
    return InvalidArgument("graph: is cut short or comes without its file");
  }
  std::memcpy(&raw, body.data(), REPRISE_MSG_GRAPH_LEAST);
  const uint64_t text_bytes =
      uint64_t{raw.budget_bytes} + uint64_t{raw.capabilities_bytes};
  size_t fixed = REPRISE_MSG_GRAPH_LEAST;
  for (const size_t longer : {size_t{REPRISE_MSG_GRAPH_DEVICE}, sizeof(raw)}) {
    if (body.size() != longer + text_bytes) continue;
    fixed = longer;
    std::memcpy(&raw, body.data(), longer);
  }
  if (body.size() != fixed + text_bytes || raw.static_bytes > kLargestBytes ||
      raw.device_bytes > kLargestBytes ||
      raw.device_free_bytes > kLargestBytes ||
      raw.reserve_bytes > kLargestBytes || raw.more_bytes > kLargestBytes) {
    return InvalidArgument("graph: its sizes disagree");
  }
  const std::string_view texts = body.substr(fixed);
  PlanWish wish{
      .graph_id = raw.graph_id,
      .budget = FirstText(texts.substr(0, raw.budget_bytes)),
      .capabilities = FirstText(texts.substr(raw.budget_bytes)),
      .static_bytes = raw.static_bytes,
      .device_bytes = raw.device_bytes,
      .device_free_bytes = raw.device_free_bytes,
      .reserve_bytes = raw.reserve_bytes,
      .request_id = raw.request_id,
      .replaces = raw.replaces,
      .more_bytes = raw.more_bytes,
  };
  const uint64_t answer_id = wish.AnswerId();
  const auto answered = std::find_if(
      answers_.begin(), answers_.end(),
      [&wish](const PlanAnswer& answer) { return answer.wish == wish; });
  if (answered != answers_.end()) {
    Deliver(PlanAnswer(*answered));
    return OkStatus();
  }
  const auto not_planned = [&](std::string_view why) {
    SendPlanStatus(answer_id, REPRISE_PLAN_NOT_PLANNED, 0, why);
    return OkStatus();
  };
  auto json = MapSealed(message.fds[0], raw.bytes, REPRISE_MAX_GRAPH_BYTES,
                        StrCat("graph ", formats::HexId(raw.graph_id)));
  if (!json.ok()) return not_planned(json.status().message());
  const bool asked =
      std::find(asked_.begin(), asked_.end(), wish) != asked_.end();
  if (!asked) {
    if (asked_.size() >= kMaxAsked) {
      return not_planned(
          "too many plans are under way for this session; "
          "submit the graph again later");
    }
    asked_.push_back(wish);
    waiting_graphs_.push_back({.wish = std::move(wish),
                               .json = *std::move(json),
                               .head = ring_ ? ring_->head() : 0,
                               .since = now});
  }
  SendPlanStatus(answer_id, REPRISE_PLAN_SOLVING, 0, "solving");
  return OkStatus();
}

// A snapshot that cannot be read is dropped; the session continues.
void AgentSession::HandleSnapshot(const Message& message) {
  reprise_msg_bulk raw;
  if (message.body.size() < sizeof(raw) || message.fds.size() != 1) {
    return Note("snapshot: is cut short or comes without its file");
  }
  std::memcpy(&raw, message.body.data(), sizeof(raw));
  if (moments_taken_ >= kMaxMomentsEver ||
      waiting_moments_.size() >= kMaxMomentsWaiting) {
    return Note(StrCat("snapshot: no more than ", kMaxMomentsEver,
                       " are kept of a session"));
  }
  const auto json =
      MapSealed(message.fds[0], raw.bytes, kMaxMomentBytes, "snapshot");
  if (!json.ok()) return Note(json.status().message());
  auto moment = ParseMoment(json->text());
  if (!moment.ok()) return Note(moment.status().message());
  ++moments_taken_;
  waiting_moments_.push_back(*std::move(moment));
}

// Adds a line to the capabilities, once.
void AgentSession::Note(std::string line) {
  if (capabilities_.size() >= kMaxCapabilityLines ||
      std::find(capabilities_.begin(), capabilities_.end(), line) !=
          capabilities_.end()) {
    return;
  }
  capabilities_.push_back(std::move(line));
  capabilities_changed_ = true;
}

void AgentSession::SubmitGraphs(PlanRelay& relay, Clock::time_point now) {
  std::erase_if(waiting_graphs_, [&](WaitingGraph& graph) {
    // A record that is never published must not block the plan.
    const bool read = !ring_ || ring_->position() >= graph.head ||
                      now - graph.since > kGraphWait;
    if (!read) return false;
    relay.Submit(row_.key, row_.run_id,
                 StrCat("uid ", info_.uid(), ", pid ", info_.pid()),
                 std::move(graph.wish), std::move(graph.json), join_.Measure());
    return true;
  });
}

// ---- Down ----

void AgentSession::Deliver(const PlanAnswer& answer) {
  if (answer.status != REPRISE_PLAN_UNREACHABLE) {
    std::erase(asked_, answer.wish);
  }
  if (answer.replan) return DeliverReplan(answer);
  // A job without a budget may be sent one later.
  const bool final = answer.plan != nullptr ||
                     answer.status == REPRISE_PLAN_INFEASIBLE ||
                     answer.wish.budget.empty();
  if (final) {
    std::erase_if(answers_, [&answer](const PlanAnswer& known) {
      return known.wish == answer.wish;
    });
    if (answers_.size() >= kMaxAnswers) answers_.erase(answers_.begin());
    answers_.push_back(answer);
  }
  if (answer.plan) {
    SendPlan(answer.wish.AnswerId(), answer.plan);
  } else {
    SendPlanStatus(answer.wish.AnswerId(), answer.status,
                   answer.smallest_budget, answer.sentence);
  }
}

// The plan becomes the answer to every request whose plan it replaces.
void AgentSession::DeliverReplan(const PlanAnswer& answer) {
  bool known_here = false;
  for (PlanAnswer& known : answers_) {
    if (known.wish.graph_id != answer.wish.graph_id) continue;
    const uint64_t plan_id = known.plan ? known.plan->plan_id : 0;
    if (answer.replaces != 0 && answer.replaces != plan_id) continue;
    known.status = answer.status;
    known.plan = answer.plan;
    known_here = true;
    SendPlan(known.wish.AnswerId(), answer.plan);
  }
  // A collector that was started again meanwhile knows no requests.
  if (!known_here) SendPlan(answer.wish.AnswerId(), answer.plan);
}

void AgentSession::SendPlan(uint64_t answer_id,
                            std::shared_ptr<const EncodedPlan> plan) {
  reprise_msg_plan raw{};
  raw.graph_id = answer_id;
  raw.plan_id = plan->plan_id;
  raw.bytes = plan->json.size();
  raw.predicted_peak = plan->peak_bytes;
  raw.predicted_ns = plan->time_ns;
  outbox_.push_back({.type = REPRISE_MSG_PLAN,
                     .body = BytesOf(raw),
                     .plan = std::move(plan)});
}

void AgentSession::SendPlanStatus(uint64_t answer_id, uint32_t status,
                                  uint64_t smallest_budget,
                                  std::string_view sentence) {
  const std::string text = ValidUtf8(sentence, kMaxSentenceBytes);
  const reprise_msg_plan_status raw{
      .graph_id = answer_id,
      .smallest_budget = smallest_budget,
      .status = status,
      .text_bytes = static_cast<uint32_t>(text.size())};
  outbox_.push_back({.type = REPRISE_MSG_PLAN_STATUS,
                     .body = BytesOf(raw) + text,
                     .plan = nullptr});
}

void AgentSession::Command(uint32_t command, uint32_t steps) {
  reprise_msg_command raw{};
  raw.command = command;
  raw.steps = steps;
  outbox_.push_back(
      {.type = REPRISE_MSG_COMMAND, .body = BytesOf(raw), .plan = nullptr});
}

void AgentSession::OpenWindow(const v1::OpenWindow& window) {
  waiting_window_ = window;
  SendWaitingWindow();
}

// The agent reads it at the beginning of a step, so it is sent one step ahead.
void AgentSession::SendWaitingWindow() {
  if (!waiting_window_ || !connected() ||
      last_step_ + 1 < waiting_window_->at_step()) {
    return;
  }
  Command(REPRISE_COMMAND_WINDOW_BEGIN, waiting_window_->steps());
  waiting_window_.reset();
}

std::optional<v1::Caps> AgentSession::TakeNewCapabilities() {
  if (!std::exchange(capabilities_changed_, false)) return std::nullopt;
  return CapabilitiesOf(capabilities_);
}

Status AgentSession::Flush() {
  if (!connected()) outbox_.clear();
  while (!outbox_.empty()) {
    const Outgoing& next = outbox_.front();
    Fd memfd;
    if (next.plan) {
      auto sealed = SealedMemfd("reprise-plan", next.plan->json);
      if (!sealed.ok()) return OkStatus();  // no descriptor free: retry later
      memfd = *std::move(sealed);
    }
    const Status sent = Send(socket_, next.type, 0, next.body, memfd.get());
    if (sent.code() == Code::kUnavailable) {
      if (outbox_.size() <= kMaxOutbox) return OkStatus();
      return ResourceExhausted("agent: does not read what it asks for");
    }
    // The connection is broken. The reading side closes it, because what the
    // agent sent before it left must still be read.
    if (!sent.ok()) return OkStatus();
    outbox_.pop_front();
  }
  return OkStatus();
}

}  // namespace reprise::server
