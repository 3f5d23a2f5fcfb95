// SPDX-License-Identifier: Apache-2.0
//
// One Ingest stream: a state machine over gRPC's callbacks.
//
//   waiting for Hello ──▶ open ──▶ finishing ──▶ done
//
// One mutex guards all state, and nothing blocks while holding it. The call
// keeps itself alive until OnDone. Others that hold it (the committer's
// callbacks, the registry) find it inert after that.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "reprise/v1/ingest.pb.h"
#include "server/ingest/committer.h"
#include "server/ingest/ingest_service.h"

namespace reprise::server {

class IngestCall final : public grpc::ServerBidiReactor<v1::Up, v1::Down>,
                         public std::enable_shared_from_this<IngestCall> {
 public:
  // `caller` is empty for calls within the process: the collector's, whose
  // Hello says which user the kernel saw.
  static IngestCall* Start(Committer& committer, IngestRegistry& registry,
                           Metrics& metrics, Caller caller);

  // Queues a message to the sender.
  void Send(v1::Down message);
  // Ends the stream with this status.
  void Fail(const Status& status);

  std::string run_id() const;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  IngestCall(Committer& committer, IngestRegistry& registry, Metrics& metrics,
             Caller caller)
      : committer_(committer),
        registry_(registry),
        metrics_(metrics),
        caller_(std::move(caller)) {}

  // Checks one message and passes it on.
  Status Take(v1::Up& up);
  Status TakeHello(v1::Hello& hello);
  void Commit(CommitItem item);
  void Committed(const CommitResult& result, bool was_hello, uint64_t seq);

  // These require mutex_.
  void ReadMore();
  void WriteMore();
  void FinishWhenDue();

  Committer& committer_;
  IngestRegistry& registry_;
  Metrics& metrics_;
  const Caller caller_;

  mutable std::mutex mutex_;
  std::shared_ptr<IngestCall> self_;
  Producer producer_;
  bool greeted_ = false;
  v1::Up incoming_;
  std::deque<v1::Down> outgoing_;
  uint32_t in_flight_ = 0;
  // The hole that was reported; it is not reported again until the sender has
  // gone back.
  uint64_t resend_asked_ = 0;
  bool reading_ = false;
  bool writing_ = false;
  bool half_closed_ = false;  // the sender will send no more
  bool failed_ = false;
  bool finished_ = false;
  grpc::Status final_status_;
};

}  // namespace reprise::server
