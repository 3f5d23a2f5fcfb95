// SPDX-License-Identifier: Apache-2.0
#include "server/service/method.h"

#include <chrono>

namespace reprise::server {

namespace {

// Records how long a call took and how it ended.
class MeasuredCall : public Call {
 public:
  MeasuredCall(std::shared_ptr<Call> call, std::string path, Metrics& metrics)
      : call_(std::move(call)), path_(std::move(path)), metrics_(metrics) {
    ++metrics_.calls_started;
    ++metrics_.calls_under_way;
  }
  ~MeasuredCall() override { --metrics_.calls_under_way; }
  MeasuredCall(const MeasuredCall&) = delete;
  MeasuredCall& operator=(const MeasuredCall&) = delete;

  void Send(const google::protobuf::Message& message) override {
    call_->Send(message);
  }
  void Finish(const Status& status) override {
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - started_;
    metrics_.CountRpc(path_, status.code(), took.count());
    call_->Finish(status);
  }
  size_t unsent() const override { return call_->unsent(); }
  bool cancelled() const override { return call_->cancelled(); }

 private:
  const std::shared_ptr<Call> call_;
  const std::string path_;
  Metrics& metrics_;
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
  method.start(std::move(request), std::make_shared<MeasuredCall>(
                                       std::move(call), method.path, metrics_));
}

}  // namespace reprise::server
