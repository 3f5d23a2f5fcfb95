// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/graph_json.h"
#include "server/net/connect.h"
#include "server/net/http.h"
#include "server/net/import_upload.h"

namespace reprise::server {

namespace {

// The bytes of a graph that is being sent. They count in the limit of all until
// they are stored or refused.
struct Sent {
  explicit Sent(ByteShare& limit) : share(limit) {}
  ~Sent() { share.Give(bytes.size()); }
  Sent(const Sent&) = delete;
  Sent& operator=(const Sent&) = delete;

  ByteShare& share;
  std::string bytes;
};

}  // namespace

class GraphPosts::Upload final : public HttpUpload {
 public:
  Upload(Services& services, const HttpRequest& head, const Access& access,
         bool json)
      : services_(services),
        run_id_(QueryValue(head.query, "runId")),
        graph_id_(QueryValue(head.query, "graphId")),
        caller_(services.identify(head.peer, access)),
        json_(json),
        sent_(std::make_shared<Sent>(services.sent_graphs)) {}

  void Take(std::string part, Next next) override {
    if (!services_.sent_graphs.Take(part.size())) {
      next(Refusal(NoRoomForGraph(services_)));
      return;
    }
    sent_->bytes += part;
    next(std::nullopt);
  }

  HttpResponse TooLarge() const override {
    return Refusal(
        413, ResourceExhausted(
                 StrCat("the step graph is larger than ",
                        FormatBytes(static_cast<int64_t>(kMaxGraphUploadBytes)),
                        "; capture a shorter step")));
  }

  void Finish(std::shared_ptr<HttpReply> reply) override {
    auto work = [&services = services_, run_id = run_id_, graph_id = graph_id_,
                 caller = caller_, json = json_, sent = sent_, reply] {
      const StatusOr<v1::GraphRef> ref =
          ReceiveGraph(services, caller, run_id, graph_id,
                       [&] { return Serialized(sent->bytes, json); });
      const StatusOr<std::string> answer =
          ref.ok() ? JsonOf(*ref) : StatusOr<std::string>(ref.status());
      reply->Respond(answer.ok() ? JsonResponse(*answer)
                                 : Refusal(answer.status()));
    };
    if (!services_.short_work.Post(std::move(work))) {
      reply->Respond(
          Refusal(Unavailable("the server is busy or shutting down")));
    }
  }

 private:
  static StatusOr<std::string> Serialized(const std::string& bytes, bool json) {
    if (!json) return bytes;
    ASSIGN_OR_RETURN(const v1::StepGraph graph, formats::ReadGraphText(bytes));
    return graph.SerializeAsString();
  }

  Services& services_;
  const std::string run_id_;
  const std::string graph_id_;
  const Caller caller_;
  const bool json_;
  const std::shared_ptr<Sent> sent_;
};

HttpUploadStart GraphPosts::Begin(const HttpRequest& head,
                                  const Access& access) {
  std::string_view type = head.Header("content-type");
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.remove_suffix(1);
  if (head.method != "POST") {
    return {.refused = Refusal(
                405, Unimplemented(StrCat(head.path, " takes POST only")))};
  }
  if (type != "application/json" && type != "application/proto") {
    return {.refused =
                Refusal(415, InvalidArgument(StrCat(head.path,
                                                    " takes Content-Type "
                                                    "application/json or "
                                                    "application/proto")))};
  }
  return {.upload = std::make_unique<Upload>(services_, head, access,
                                             type == "application/json"),
          .max_bytes = kMaxGraphUploadBytes};
}

}  // namespace reprise::server
