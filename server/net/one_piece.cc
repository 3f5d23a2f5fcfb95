// SPDX-License-Identifier: Apache-2.0

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/graph_json.h"
#include "reprise/v1/planner.pb.h"
#include "reprise/v1/query.pb.h"
#include "server/net/connect.h"

namespace reprise::server {

namespace {

using google::protobuf::Message;

Status TooLarge() {
  return ResourceExhausted(
      StrCat("the answer is larger than ",
             FormatBytes(static_cast<int64_t>(kMaxOnePieceBytes)),
             "; ask for it as a stream (application/connect+json)"));
}

// Returns {"name":[a,b,c]}.
template <typename Texts, typename Get>
std::string List(std::string_view name, const Texts& texts, Get get) {
  std::string json = StrCat("{\"", name, "\":[");
  for (const auto& text : texts) {
    if (json.back() != '[') json += ',';
    json += get(text);
  }
  return json + "]}";
}

class OnePieceCall final : public Call {
 public:
  OnePieceCall(std::shared_ptr<HttpReply> reply, const HttpRequest& request)
      : Call(request.peer, request.access), reply_(std::move(reply)) {}

  void Send(const Message& message) override {
    const std::lock_guard lock(mutex_);
    if (answered_ || !failed_.ok()) return;
    failed_ = Take(message);
    if (failed_.ok() && bytes_ > kMaxOnePieceBytes) failed_ = TooLarge();
    // What cannot be answered is not kept.
    if (!failed_.ok()) Forget();
  }
  void Finish(const Status& status) override {
    const std::lock_guard lock(mutex_);
    if (answered_) return;
    answered_ = true;
    // The handler saw a cancelled call because of the failure.
    const Status& outcome = failed_.ok() ? status : failed_;
    if (!outcome.ok()) {
      reply_->Respond(Refusal(outcome));
      return;
    }
    StatusOr<std::string> json = Answer();
    reply_->Respond(json.ok() ? JsonResponse(*std::move(json))
                              : Refusal(json.status()));
    Forget();
  }
  size_t unsent() const override { return 0; }
  bool cancelled() const override {
    if (reply_->cancelled()) return true;
    const std::lock_guard lock(mutex_);
    return answered_ || !failed_.ok();
  }

 private:
  // Keeps what the answer needs of a message. Requires mutex_, as all below.
  Status Take(const Message& message) {
    if (const auto* event = Is<v1::PlanEvent>(message)) {
      if (event->has_plan()) plan_ = event->plan();
      return OkStatus();
    }
    if (const auto* part = Is<v1::GraphPart>(message)) {
      graph_.emplace();
      graph_bytes_ += part->data();
      bytes_ += part->data().size();
      return OkStatus();
    }
    ASSIGN_OR_RETURN(std::string json, JsonOf(message));
    bytes_ += json.size();
    if (const auto* point = Is<v1::TradeoffPoint>(message)) {
      std::string& kept = points_[point->budget_bytes()];
      bytes_ -= kept.size();
      kept = std::move(json);
    } else if (Is<v1::RunEvent>(message) != nullptr) {
      if (bytes_ > kMaxOnePieceBytes) return OkStatus();
      answered_ = true;
      reply_->Respond(JsonResponse(std::move(json)));
    } else {
      parts_.push_back(std::move(json));
      is_parts_ = true;
    }
    return OkStatus();
  }

  template <typename Type>
  static const Type* Is(const Message& message) {
    return google::protobuf::DynamicCastToGenerated<Type>(&message);
  }

  StatusOr<std::string> Answer() {
    if (plan_.has_value()) return JsonOf(*plan_);
    if (graph_.has_value()) {
      if (!graph_->ParseFromString(graph_bytes_)) {
        return Status(Code::kDataLoss, "the stored step graph cannot be read");
      }
      std::string text = formats::WriteGraphText(*graph_);
      if (text.size() > kMaxOnePieceBytes) return TooLarge();
      return text;
    }
    if (is_parts_) {
      return List("parts", parts_,
                  [](const std::string& text) { return text; });
    }
    return List("points", points_, [](const auto& one) { return one.second; });
  }

  void Forget() {
    plan_.reset();
    graph_.reset();
    graph_bytes_ = {};
    points_.clear();
    parts_.clear();
  }

  const std::shared_ptr<HttpReply> reply_;
  mutable std::mutex mutex_;
  bool answered_ = false;
  Status failed_ = OkStatus();
  size_t bytes_ = 0;  // of what is kept
  std::optional<v1::Plan> plan_;
  std::optional<v1::StepGraph> graph_;
  std::string graph_bytes_;
  std::map<int64_t, std::string, std::greater<>> points_;  // by budget
  bool is_parts_ = false;
  std::vector<std::string> parts_;
};

}  // namespace

std::shared_ptr<Call> MakeOnePieceCall(std::shared_ptr<HttpReply> reply,
                                       const HttpRequest& request) {
  return std::make_shared<OnePieceCall>(std::move(reply), request);
}

}  // namespace reprise::server
