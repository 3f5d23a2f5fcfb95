// SPDX-License-Identifier: Apache-2.0
//
// An RPC, implemented once and served twice: by gRPC and by Connect over
// HTTP/1.1.
//
//   client ── gRPC ────▶ grpc_services.cc ─┐
//   browser ─ Connect ─▶ net/connect.cc ───┴▶ MethodTable::Start ─▶ handler
//
// A handler gets the parsed request and a Call. It may send any number of
// messages (exactly one if the method is unary) and finishes the call, from any
// thread. Starting a call never blocks: the work goes to a pool.
#pragma once

#include <google/protobuf/message.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/core/access.h"
#include "server/core/metrics.h"

namespace reprise::server {

// One call in progress. Thread-safe.
class Call {
 public:
  Call(std::string peer, Access access)
      : peer_(std::move(peer)), access_(std::move(access)) {}
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Queues a message of the method's response type; never blocks.
  virtual void Send(const google::protobuf::Message& message) = 0;

  // Ends the call; nothing may be sent afterwards.
  virtual void Finish(const Status& status) = 0;

  // Messages queued but not yet taken by the transport. A stream that can wait
  // should do so while this is not 0.
  virtual size_t unsent() const = 0;

  // Returns whether the client has gone away; Finish is still required.
  virtual bool cancelled() const = 0;

  // The other end of the connection, in gRPC's spelling:
  // "ipv4:127.0.0.1:41234". "inproc" for calls within the process, followed by
  // ":" and the job's user and process where it calls for a job.
  const std::string& peer() const { return peer_; }

  // What the caller may do.
  const Access& access() const { return access_; }

 private:
  const std::string peer_;
  const Access access_;
};

// What is done around a call: passes everything on to it.
class CallAround : public Call {
 public:
  explicit CallAround(std::shared_ptr<Call> call)
      : Call(call->peer(), call->access()), call_(std::move(call)) {}

  void Send(const google::protobuf::Message& message) override {
    call_->Send(message);
  }
  void Finish(const Status& status) override { call_->Finish(status); }
  size_t unsent() const override { return call_->unsent(); }
  bool cancelled() const override { return call_->cancelled(); }

 private:
  const std::shared_ptr<Call> call_;
};

// Asked before a call starts, from any thread; answers once, with OK or with how
// the call ends. Narrows the request to what the caller may see.
using CallGate = std::function<void(
    std::string_view path, google::protobuf::Message& request, const Call& call,
    std::function<void(const Status&)> answer)>;

// Replaces a call before it starts; for what is done around every call.
using CallWrapper = std::function<std::shared_ptr<Call>(
    const google::protobuf::Message& request, std::shared_ptr<Call> call)>;

struct Method {
  std::string path;  // "/reprise.v1.Query/GetRun"
  bool streams = false;
  std::function<std::unique_ptr<google::protobuf::Message>()> new_request;
  std::function<void(std::shared_ptr<const google::protobuf::Message>,
                     std::shared_ptr<Call>)>
      start;
};

// Makes a method from a handler that takes its own request type.
template <typename Request, typename Handler>
Method MakeMethod(std::string path, bool streams, Handler handler) {
  return {.path = std::move(path),
          .streams = streams,
          .new_request = [] { return std::make_unique<Request>(); },
          .start =
              [handler = std::move(handler)](
                  std::shared_ptr<const google::protobuf::Message> message,
                  std::shared_ptr<Call> call) {
                handler(std::static_pointer_cast<const Request>(message),
                        std::move(call));
              }};
}

class MethodTable {
 public:
  explicit MethodTable(Metrics& metrics) : metrics_(metrics) {}

  // Before the first call.
  void WrapCalls(CallWrapper wrap) { wrap_ = std::move(wrap); }
  void AskBefore(CallGate gate) { gate_ = std::move(gate); }

  void Add(Method method) { methods_.push_back(std::move(method)); }

  const std::vector<Method>& methods() const { return methods_; }

  // Returns the method with this path, or null.
  const Method* Find(std::string_view path) const;

  // Starts a call and records its duration.
  void Start(const Method& method,
             std::unique_ptr<google::protobuf::Message> request,
             std::shared_ptr<Call> call) const;

 private:
  Metrics& metrics_;
  CallWrapper wrap_;
  CallGate gate_;
  std::vector<Method> methods_;
};

}  // namespace reprise::server
