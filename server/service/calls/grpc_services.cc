// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/grpc_services.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cassert>
#include <deque>
#include <mutex>
#include <utility>

#include "server/core/grpc_peer.h"

// Includes what code generated for this version of gRPC registers methods with.
#include "reprise/v1/planner.grpc.pb.h"

namespace reprise::server {

namespace {

using google::protobuf::Message;
using ProtoBytes = grpc::SerializationTraits<Message>;

// A call of any method. One of a unary method is a stream of one message: it
// differs in nothing that is sent.
class GrpcCall final : public Call,
                       public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  GrpcCall(std::string peer, Access access, bool streams)
      : Call(std::move(peer), std::move(access)), streams_(streams) {}
  void Hold(std::shared_ptr<GrpcCall> self) { self_ = std::move(self); }

  void Send(const Message& message) override {
    grpc::ByteBuffer bytes;
    bool owned = false;
    [[maybe_unused]] const grpc::Status made =
        ProtoBytes::Serialize(message, &bytes, &owned);
    assert(made.ok() && "every message is far below 2 GiB");
    const std::lock_guard lock(mutex_);
    if (cancelled_) return;
    queue_.push_back(std::move(bytes));
    Advance();
  }
  void Finish(const Status& status) override {
    const std::lock_guard lock(mutex_);
    last_ = true;
    status_ = ToGrpc(status);
    Advance();
  }
  size_t unsent() const override {
    const std::lock_guard lock(mutex_);
    return queue_.size();
  }
  bool cancelled() const override { return cancelled_; }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) {
      cancelled_ = true;
      queue_.clear();
    }
    Advance();
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { const auto last = std::move(self_); }

 private:
  using Reactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

  // Requires mutex_.
  void Advance() {
    if (writing_ || finished_) return;
    if (cancelled_) queue_.clear();
    if (last_ && queue_.size() < 2) {
      finished_ = true;
      if (queue_.empty()) return Reactor::Finish(status_);
      // The message and the status in one piece.
      StartWriteAndFinish(&queue_.front(), {}, status_);
    } else if (!queue_.empty() && streams_) {
      writing_ = true;
      StartWrite(&queue_.front());
    }
  }

  const bool streams_;
  mutable std::mutex mutex_;
  std::deque<grpc::ByteBuffer> queue_;
  bool writing_ = false;
  bool last_ = false;
  bool finished_ = false;
  grpc::Status status_;
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<GrpcCall> self_;
};

// Every method of the table, registered as generated code registers its own.
class TableService final : public grpc::Service {
 public:
  TableService(Services& services, const MethodTable& table)
      : table_(table), services_(services), uploads_(services) {
    using grpc::internal::RpcMethod;
    for (const Method& method : table.methods()) {
      Register(method.path, method.streams ? RpcMethod::SERVER_STREAMING
                                           : RpcMethod::NORMAL_RPC);
      MarkMethodRawCallback(
          count_++,
          new grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer,
                                                             grpc::ByteBuffer>(
              [this, &method](grpc::CallbackServerContext* context,
                              const grpc::ByteBuffer* request) {
                return Start(method, *context, *request);
              }));
    }
    Register("/reprise.v1.Planner/PutGraph", RpcMethod::CLIENT_STREAMING);
    MarkMethodCallback(
        count_,
        new grpc::internal::CallbackClientStreamingHandler<v1::GraphPart,
                                                           v1::GraphRef>(
            [this](grpc::CallbackServerContext* context, v1::GraphRef* ref) {
              return uploads_.Begin(context, ref);
            }));
  }

 private:
  void Register(const std::string& path,
                grpc::internal::RpcMethod::RpcType type) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        paths_.emplace_back(path).c_str(), type, nullptr));
  }

  // Returns null, and gRPC UNIMPLEMENTED, if the request cannot be parsed.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(
      const Method& method, const grpc::CallbackServerContext& context,
      const grpc::ByteBuffer& request) const {
    std::unique_ptr<Message> message = method.new_request();
    grpc::ByteBuffer bytes(request);
    if (!ProtoBytes::Deserialize(&bytes, message.get()).ok()) return nullptr;
    auto call = std::make_shared<GrpcCall>(
        PeerOfCall(context), AccessOf(context, services_.authenticate),
        method.streams);
    call->Hold(call);
    auto* reactor = call.get();
    table_.Start(method, std::move(message), std::move(call));
    return reactor;
  }

  const MethodTable& table_;
  const Services& services_;
  GraphUploads uploads_;
  int count_ = 0;
  std::deque<std::string> paths_;  // gRPC keeps pointers to them
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGrpcService(Services& services,
                                               const MethodTable& table) {
  return std::make_unique<TableService>(services, table);
}

}  // namespace reprise::server
