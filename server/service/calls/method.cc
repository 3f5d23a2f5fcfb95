// SPDX-License-Identifier: Apache-2.0
#include "server/service/calls/method.h"

#include <chrono>
#include <new>

namespace reprise::server {

namespace {

constexpr char kNoMemory[] =
    "the server has not enough memory for this request; try again later";

// Records how long a call took and how it ended.
class MeasuredCall final : public CallAround {
 public:
  MeasuredCall(std::shared_ptr<Call> call, std::string path, Metrics& metrics)
      : CallAround(std::move(call)), path_(std::move(path)), metrics_(metrics) {
    ++metrics_.calls_started;
    ++metrics_.calls_under_way;
  }
  ~MeasuredCall() override {
    --metrics_.calls_under_way;
    if (finished_) return;
    // The handler was ended by an exception: without this, the client would
    // wait forever.
    try {
      Finish(Unavailable(kNoMemory));
    } catch (const std::bad_alloc&) {
      // Not even for the answer.
    }
  }

  void Finish(const Status& status) override {
    finished_ = true;
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - started_;
    metrics_.CountRpc(path_, status.code(), took.count());
    CallAround::Finish(status);
  }

 private:
  const std::string path_;
  Metrics& metrics_;
  bool finished_ = false;
  const std::chrono::steady_clock::time_point started_ =
      std::chrono::steady_clock::now();
};

}  // namespace

const Method* MethodTable::Find(std::string_view path) const {
  for (const Method& method : methods_) {
    if (method.path == path) return &method;
  }
  return nullptr;
}

void MethodTable::Start(const Method& method,
                        std::unique_ptr<google::protobuf::Message> request,
                        std::shared_ptr<Call> call) const {
  std::shared_ptr<google::protobuf::Message> message = std::move(request);
  call = std::make_shared<MeasuredCall>(std::move(call), method.path, metrics_);
  const auto begin = [this, &method, message, call](const Status& may) {
    const std::shared_ptr<Call> wrapped = wrap_ ? wrap_(*message, call) : call;
    if (may.ok()) {
      method.start(message, wrapped);
    } else {
      wrapped->Finish(may);
    }
  };
  if (gate_) {
    gate_(method.path, *message, *call, begin);
  } else {
    begin(OkStatus());
  }
}

}  // namespace reprise::server
