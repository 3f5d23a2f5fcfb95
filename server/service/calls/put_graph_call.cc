// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/put_graph_call.h"

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "base/units.h"
#include "server/core/grpc_peer.h"
#include "server/service/calls/grpc_status.h"

namespace reprise::server {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxGraphBytes = 64 << 20;
constexpr size_t kMaxPartBytes = 1 << 20;
constexpr auto kSilence = std::chrono::seconds(30);

}  // namespace

// ---- PutGraphCall ----

class PutGraphCall final : public grpc::ServerReadReactor<v1::GraphPart> {
 public:
  PutGraphCall(GraphUploads& uploads, grpc::CallbackServerContext* context,
               v1::GraphRef* response)
      : uploads_(uploads), context_(context), response_(response) {}

  void Begin() { StartRead(&part_); }

  void OnReadDone(bool ok) override {
    heard_ = Clock::now();
    if (!ok) {
      Store();
      return;
    }
    const Status status = Take();
    if (!status.ok()) {
      Finish(ToGrpc(status));
      return;
    }
    StartRead(&part_);
  }
  void OnDone() override {
    uploads_.Remove(this, bytes_);
    delete this;
  }

  void CancelIfSilent(Clock::time_point now) {
    if (!storing_ && now - heard_.load() >= kSilence) context_->TryCancel();
  }

 private:
  Status Take() {
    const size_t bytes = part_.data().size();
    if (bytes > kMaxPartBytes) {
      return ResourceExhausted(StrCat("part ", parts_.size(), ": at most ",
                                      kMaxPartBytes, " bytes, got ", bytes));
    }
    if (bytes_ + bytes > kMaxGraphBytes) {
      return ResourceExhausted(StrCat("the step graph is larger than ",
                                      kMaxGraphBytes,
                                      " bytes; capture a shorter step"));
    }
    if (!uploads_.TakeRoom(bytes)) {
      return ResourceExhausted(StrCat(
          "step graphs that are being sent may have ",
          FormatBytes(static_cast<int64_t>(
              uploads_.services_.sent_graphs.most_bytes())),
          " together, and this one does not fit now; try again when others "
          "are through"));
    }
    bytes_ += bytes;
    if (parts_.empty()) {
      run_id_ = part_.run_id();
      graph_id_ = part_.graph_id();
    }
    parts_.push_back(std::move(*part_.mutable_data()));
    return OkStatus();
  }

  void Store() {
    if (context_->IsCancelled()) {
      Finish(
          {grpc::StatusCode::CANCELLED, "the step graph was not sent whole"});
      return;
    }
    storing_ = true;
    const Audit& audit = uploads_.services_.audit;
    auto work = [this, caller = audit.Identify(PeerOfCall(*context_))] {
      StatusOr<v1::GraphRef> ref =
          ReceiveGraph(uploads_.services_, caller, run_id_, graph_id_, [this] {
            std::string serialized;
            serialized.reserve(bytes_);
            for (std::string& part : parts_) {
              serialized += part;
              part = {};
            }
            return serialized;
          });
      if (ref.ok()) *response_ = std::move(*ref);
      Finish(ToGrpc(ref.status()));
    };
    if (uploads_.services_.short_work.Post(std::move(work))) return;
    Finish(
        {grpc::StatusCode::UNAVAILABLE, "the server is busy or shutting down"});
  }

  GraphUploads& uploads_;
  grpc::CallbackServerContext* const context_;
  v1::GraphRef* const response_;
  v1::GraphPart part_;
  std::vector<std::string> parts_;
  size_t bytes_ = 0;
  std::string run_id_;
  std::string graph_id_;
  std::atomic<Clock::time_point> heard_ = Clock::now();
  std::atomic<bool> storing_ = false;
};

// ---- GraphUploads ----

grpc::ServerReadReactor<v1::GraphPart>* GraphUploads::Begin(
    grpc::CallbackServerContext* context, v1::GraphRef* response) {
  auto* call = new PutGraphCall(*this, context, response);
  {
    const std::lock_guard lock(mutex_);
    calls_.insert(call);
  }
  call->Begin();
  return call;
}

bool GraphUploads::TakeRoom(uint64_t bytes) {
  if (services_.sent_graphs.Take(bytes)) return true;
  const std::lock_guard lock(mutex_);
  const std::set<PutGraphCall*> all = calls_;
  for (PutGraphCall* call : all) {
    if (calls_.contains(call)) call->CancelIfSilent(Clock::now());
  }
  return services_.sent_graphs.Take(bytes);
}

void GraphUploads::Remove(PutGraphCall* call, uint64_t bytes) {
  services_.sent_graphs.Give(bytes);
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
}

}  // namespace reprise::server
