// SPDX-License-Identifier: Apache-2.0
//
// One Ingest stream from opening to end: turns the callbacks of gRPC's reactor
// into a queue of answers and two flags. The forwarder makes all decisions on
// its own thread; callbacks only store and signal.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "reprise/v1/ingest.grpc.pb.h"

namespace reprise::server {

// Wakes one thread. It stays raised until a wait consumes it, so no wake-up is
// lost.
class Signal {
 public:
  void Raise() {
    const std::lock_guard lock(mutex_);
    raised_ = true;
    wake_.notify_one();
  }

  // Returns when it has been raised since the last wait, or at time `until`.
  template <typename TimePoint>
  void WaitUntil(TimePoint until) {
    std::unique_lock lock(mutex_);
    wake_.wait_until(lock, until, [this] { return raised_; });
    raised_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool raised_ = false;
};

class IngestStream final : public grpc::ClientBidiReactor<v1::Up, v1::Down>,
                           public std::enable_shared_from_this<IngestStream> {
 public:
  // Opens the stream and writes `hello`. The stream keeps itself alive until
  // gRPC is done with it.
  static std::shared_ptr<IngestStream> Open(v1::Ingest::Stub& stub,
                                            const v1::Up& hello,
                                            std::shared_ptr<Signal> signal);

  // Returns whether a write may start: none is in progress and the stream is
  // open.
  bool writable() const;
  void Write(v1::Up message);  // only when writable()

  // Announces the end of writes; the server finishes the stream once it has
  // taken all.
  void HalfClose();

  // Takes the next message from the server into `answer`; false if there is
  // none.
  bool TakeAnswer(v1::Down& answer);

  // Returns true once the stream is over and all answers are taken. Must be
  // called until it does, because it also releases our hold on the stream.
  bool Over(grpc::Status& status);

  // Ends the stream soon, whatever the server does. May be called repeatedly.
  void Cancel() { context_.TryCancel(); }

 private:
  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  mutable std::mutex mutex_;
  grpc::ClientContext context_;
  std::shared_ptr<Signal> signal_;
  std::shared_ptr<IngestStream> self_;  // until OnDone
  std::deque<v1::Down> answers_;
  v1::Down reading_;
  v1::Up writing_;
  bool write_under_way_ = false;
  bool write_failed_ = false;
  bool half_closed_ = false;
  bool read_closed_ = false;
  bool done_ = false;

  // gRPC may call OnDone when nothing is outstanding, even if another thread is
  // about to start a write. The hold prevents that; Open takes it and Over
  // releases it, on the thread that writes.
  bool held_ = true;
  grpc::Status status_;
};

}  // namespace reprise::server
