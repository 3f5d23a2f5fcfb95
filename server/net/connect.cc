// SPDX-License-Identifier: Apache-2.0
#include "server/net/connect.h"

#include <google/protobuf/util/json_util.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/str_cat.h"
#include "formats/convert/json_fields.h"

namespace reprise::server {

namespace {

using google::protobuf::Message;

constexpr size_t kEnvelopeBytes = 5;
constexpr unsigned char kCompressed = 1;
constexpr unsigned char kEndOfStream = 2;

StatusOr<std::string> Encode(const Message& message, bool json) {
  if (!json) return message.SerializeAsString();
  return JsonOf(message);
}

Status Decode(std::string_view bytes, bool json, Message& message) {
  if (!json) {
    if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return OkStatus();
    }
    return InvalidArgument(
        StrCat("the body is not a serialized ", message.GetTypeName()));
  }
  // An empty body means an empty message.
  const Status read =
      formats::ReadProto3(bytes.empty() ? "{}" : bytes, message);
  if (read.ok()) return OkStatus();
  return InvalidArgument(StrCat("the body is not the JSON of a ",
                                message.GetTypeName(), ": ", read.message()));
}

std::string Envelope(unsigned char flags, std::string_view payload) {
  std::string bytes;
  bytes.reserve(kEnvelopeBytes + payload.size());
  bytes += static_cast<char>(flags);
  const auto size = static_cast<uint32_t>(payload.size());
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>((size >> shift) & 0xff);
  }
  bytes += payload;
  return bytes;
}

// Returns the single message in a streaming request.
StatusOr<std::string_view> OpenEnvelope(std::string_view body) {
  if (body.size() < kEnvelopeBytes) {
    return InvalidArgument("the body is not an enveloped message");
  }
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(body[i]));
  };
  if ((byte(0) & kCompressed) != 0) {
    return Unimplemented("compressed messages are not supported");
  }
  const uint32_t size = byte(1) << 24 | byte(2) << 16 | byte(3) << 8 | byte(4);
  if (size != body.size() - kEnvelopeBytes) {
    return InvalidArgument(StrCat("the envelope says ", size,
                                  " bytes, the body has ",
                                  body.size() - kEnvelopeBytes));
  }
  return body.substr(kEnvelopeBytes);
}

class UnaryConnectCall final : public Call {
 public:
  UnaryConnectCall(std::shared_ptr<HttpReply> reply, bool json,
                   const HttpRequest& request)
      : Call(request.peer, request.access),
        reply_(std::move(reply)),
        json_(json) {}

  void Send(const Message& message) override {
    answer_ = Encode(message, json_);
  }
  void Finish(const Status& status) override {
    const Status& outcome = status.ok() ? answer_.status() : status;
    if (!outcome.ok()) {
      reply_->Respond(Refusal(outcome));
      return;
    }
    reply_->Respond({.status = 200,
                     .headers = {{"Content-Type", json_ ? "application/json"
                                                        : "application/proto"},
                                 {"Cache-Control", "no-store"}},
                     .body = *std::move(answer_)});
  }
  size_t unsent() const override { return 0; }
  bool cancelled() const override { return reply_->cancelled(); }

 private:
  const std::shared_ptr<HttpReply> reply_;
  const bool json_;
  StatusOr<std::string> answer_ = Internal("the call sent no answer");
};

class StreamConnectCall final : public Call {
 public:
  StreamConnectCall(std::shared_ptr<HttpReply> reply, bool json,
                    const HttpRequest& request)
      : Call(request.peer, request.access),
        reply_(std::move(reply)),
        json_(json) {
    reply_->BeginStream(200,
                        {{"Content-Type", json_ ? "application/connect+json"
                                                : "application/connect+proto"},
                         {"Cache-Control", "no-store"}});
  }

  void Send(const Message& message) override {
    const StatusOr<std::string> text = Encode(message, json_);
    if (text.ok()) reply_->Write(Envelope(0, *text));
  }
  void Finish(const Status& status) override {
    std::string end = "{}";
    if (!status.ok()) end = StrCat("{\"error\":", ErrorJson(status), "}");
    reply_->Write(Envelope(kEndOfStream, end));
    reply_->End();
  }
  size_t unsent() const override { return reply_->unsent(); }
  bool cancelled() const override { return reply_->cancelled(); }

 private:
  const std::shared_ptr<HttpReply> reply_;
  const bool json_;
};

struct Encoding {
  bool known = false;
  bool json = false;
  bool stream = false;
};

Encoding EncodingOf(std::string_view content_type) {
  // Parameters such as charset=utf-8 are ignored.
  content_type = content_type.substr(0, content_type.find(';'));
  while (content_type.ends_with(' ')) content_type.remove_suffix(1);
  if (content_type == "application/json") return {true, true, false};
  if (content_type == "application/proto") return {true, false, false};
  if (content_type == "application/connect+json") return {true, true, true};
  if (content_type == "application/connect+proto") return {true, false, true};
  return {};
}

}  // namespace

int HttpStatusOf(Code code) {
  // By the number of the code.
  constexpr std::array<int, 17> kStatus = {200, 499, 500, 400, 504, 404,
                                           409, 403, 429, 400, 409, 400,
                                           501, 500, 503, 500, 401};
  const auto number = static_cast<size_t>(code);
  return number < kStatus.size() ? kStatus[number] : 500;
}

std::string ErrorJson(const Status& status) {
  nlohmann::json json;
  json["code"] = CodeName(status.code());
  json["message"] = status.message();
  // A message may quote client input, which need not be UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpResponse Refusal(int http_status, const Status& status) {
  return {.status = http_status,
          .headers = {{"Content-Type", "application/json"},
                      {"Cache-Control", "no-store"},
                      {"X-Content-Type-Options", "nosniff"}},
          .body = ErrorJson(status)};
}

HttpResponse Refusal(const Status& status) {
  return Refusal(HttpStatusOf(status.code()), status);
}

HttpResponse JsonResponse(std::string body) {
  return {.status = 200,
          .headers = {{"Content-Type", "application/json"},
                      {"Cache-Control", "no-store"}},
          .body = std::move(body)};
}

StatusOr<std::string> JsonOf(const Message& message) {
  std::string text;
  const auto status =
      google::protobuf::util::MessageToJsonString(message, &text);
  if (!status.ok()) return Internal("the answer cannot be written as JSON");
  return text;
}

void ServeConnect(const MethodTable& table, HttpRequest request,
                  std::shared_ptr<HttpReply> reply) {
  const Method* method = table.Find(request.path);
  if (method == nullptr) {
    // The protocol requires 404 here, not the 501 of UNIMPLEMENTED.
    reply->Respond(Refusal(
        404, Unimplemented(StrCat("there is no method ", request.path))));
    return;
  }
  if (request.method != "POST") {
    HttpResponse refusal =
        Refusal(405, Unimplemented(StrCat(request.path, " takes POST only")));
    refusal.headers.emplace_back("Allow", "POST");
    reply->Respond(std::move(refusal));
    return;
  }
  const Encoding encoding = EncodingOf(request.Header("content-type"));
  const bool one_piece = method->streams && encoding.json && !encoding.stream;
  if (!encoding.known || (encoding.stream != method->streams && !one_piece)) {
    HttpResponse refusal = Refusal(
        415, InvalidArgument(StrCat(
                 request.path, " takes Content-Type ",
                 method->streams
                     ? "application/json, application/connect+json or +proto"
                     : "application/json or application/proto")));
    refusal.headers.emplace_back(
        "Accept-Post", method->streams
                           ? "application/json, application/connect+json, "
                             "application/connect+proto"
                           : "application/json, application/proto");
    reply->Respond(std::move(refusal));
    return;
  }
  std::unique_ptr<Message> message = method->new_request();
  if (!encoding.stream) {
    const Status parsed = Decode(request.body, encoding.json, *message);
    if (!parsed.ok()) {
      reply->Respond(Refusal(parsed));
      return;
    }
    std::shared_ptr<Call> call = one_piece ? MakeOnePieceCall(reply, request)
                                           : std::make_shared<UnaryConnectCall>(
                                                 reply, encoding.json, request);
    table.Start(*method, std::move(message), std::move(call));
    return;
  }
  auto call =
      std::make_shared<StreamConnectCall>(reply, encoding.json, request);
  const StatusOr<std::string_view> payload = OpenEnvelope(request.body);
  const Status parsed = payload.ok() ? Decode(*payload, encoding.json, *message)
                                     : payload.status();
  if (!parsed.ok()) {
    call->Finish(parsed);
    return;
  }
  table.Start(*method, std::move(message), std::move(call));
}

}  // namespace reprise::server
