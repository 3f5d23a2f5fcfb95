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

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/str_cat.h"
#include "reprise/v1/ingest.pb.h"
#include "server/ingest/chunk_check.h"
#include "server/ingest/committer.h"
#include "server/ingest/ingest_service.h"
#include "server/store/session_rows.h"

namespace reprise::server {

class IngestCall final : public grpc::ServerBidiReactor<v1::Up, v1::Down>,
                         public std::enable_shared_from_this<IngestCall> {
 public:
  // `caller` has no name for calls within the process: the collector's, whose
  // Hello says which user the kernel saw. An error is the answer to the Hello.
  static IngestCall* Start(Committer& committer, IngestRegistry& registry,
                           Metrics& metrics, StatusOr<Caller> caller) {
    std::shared_ptr<IngestCall> call(
        new IngestCall(committer, registry, metrics, std::move(caller)));
    const std::lock_guard lock(call->mutex_);
    call->self_ = call;
    call->ReadMore();
    return call.get();
  }

  // Queues a message to the sender.
  void Send(v1::Down message) {
    const std::lock_guard lock(mutex_);
    if (failed_ || finished_) return;
    outgoing_.push_back(std::move(message));
    WriteMore();
  }

  // Ends the stream with this status.
  void Fail(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (failed_ || finished_) return;
    failed_ = true;
    final_status_ = grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                                 status.message());
    FinishWhenDue();
  }

  std::string run_id() const {
    const std::lock_guard lock(mutex_);
    return producer_.run_id;
  }

  void OnReadDone(bool ok) override {
    v1::Up up;
    {
      const std::lock_guard lock(mutex_);
      if (!ok) {
        reading_ = false;
        half_closed_ = true;
        FinishWhenDue();
        return;
      }
      if (failed_ || finished_) return;
      up.Swap(&incoming_);
    }
    // `reading_` stays set: if a commit that ends now started the next read,
    // another thread could pass on the next message before this one.
    const Status status = Take(up);
    if (!status.ok()) {
      Fail(status);
      return;
    }
    const std::lock_guard lock(mutex_);
    reading_ = false;
    ReadMore();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!outgoing_.empty()) outgoing_.pop_front();
    if (!ok) outgoing_.clear();
    WriteMore();
    FinishWhenDue();
  }

  void OnCancel() override {
    {
      const std::lock_guard lock(mutex_);
      // They will not be sent; the one being written still belongs to gRPC.
      outgoing_.resize(writing_ ? 1 : 0);
    }
    Fail(Cancelled("the sender went away"));
  }

  void OnDone() override {
    std::string session_id;
    std::shared_ptr<IngestCall> self;
    {
      const std::lock_guard lock(mutex_);
      session_id = producer_.session_id;
      self = std::move(self_);
    }
    if (!session_id.empty()) registry_.Leave(session_id, this);
  }

 private:
  IngestCall(Committer& committer, IngestRegistry& registry, Metrics& metrics,
             StatusOr<Caller> caller)
      : committer_(committer),
        registry_(registry),
        metrics_(metrics),
        caller_(std::move(caller)) {}

  // Checks one message and passes it on.
  Status Take(v1::Up& up) {
    Producer producer;
    {
      const std::lock_guard lock(mutex_);
      producer = producer_;
    }
    const bool named = !producer.session_id.empty();
    if (up.m_case() != v1::Up::kHello && !named) {
      return InvalidArgument("the first message of a stream must be hello");
    }
    switch (up.m_case()) {
      case v1::Up::kHello:
        if (named) return InvalidArgument("hello: came twice");
        return TakeHello(*up.mutable_hello());
      case v1::Up::kDefs:
        RETURN_IF_ERROR(CheckDefs(up.defs()));
        Commit(producer, std::move(*up.mutable_defs()));
        return OkStatus();
      case v1::Up::kChunk: {
        StatusOr<v1::Columns> columns = CheckChunk(up.chunk());
        if (!columns.ok()) metrics_.chunks_refused.Increment();
        RETURN_IF_ERROR(columns.status());
        Commit(producer, CheckedChunk{.chunk = std::move(*up.mutable_chunk()),
                                      .columns = *std::move(columns)});
        return OkStatus();
      }
      case v1::Up::kLost:
        RETURN_IF_ERROR(CheckLost(up.lost()));
        Commit(producer, std::move(*up.mutable_lost()));
        return OkStatus();
      case v1::Up::kCaps:
        RETURN_IF_ERROR(CheckCaps(up.caps()));
        Commit(producer, std::move(*up.mutable_caps()));
        return OkStatus();
      case v1::Up::kBye:
        Commit(producer, up.bye());
        return OkStatus();
      case v1::Up::M_NOT_SET:
        // A message from a newer sender; Welcome tells it which version we speak.
        return OkStatus();
    }
    return OkStatus();
  }

  Status TakeHello(v1::Hello& hello) {
    RETURN_IF_ERROR(caller_.status());
    RETURN_IF_ERROR(CheckHello(hello));
    Producer producer{.session_id = hello.session_id(),
                      .run_id = hello.run_id(),
                      .epoch = hello.producer_epoch(),
                      .rank = hello.info().rank(),
                      .caller = *caller_};
    // The collector has the user and the process from the kernel. An import from
    // the page comes without a process; who sent the file is known there.
    if (caller_->who.empty() && hello.info().pid() != 0) {
      producer.caller.who = StrCat("uid ", hello.info().uid());
      producer.caller.peer = StrCat("agent socket, pid ", hello.info().pid());
    }
    const auto& features = hello.features();
    if (std::find(features.begin(), features.end(), kForwardedFeature) !=
        features.end()) {
      producer.forwarded = true;
      producer.caller.peer = StrCat(kForwardedBy, producer.caller.peer);
    }
    {
      const std::lock_guard lock(mutex_);
      producer_ = producer;
    }
    Commit(producer, std::move(hello));
    return OkStatus();
  }

  // Takes the session's place in the registry. Only when its Hello is stored:
  // until then, nobody knows whose session and run it is.
  void TakePlace() {
    std::string session_id;
    {
      const std::lock_guard lock(mutex_);
      session_id = producer_.session_id;
    }
    const std::shared_ptr<IngestCall> before =
        registry_.Enter(session_id, shared_from_this());
    if (before != nullptr) {
      before->Fail({Code::kAborted,
                    StrCat("session ", session_id, " has a newer stream")});
    }
    const std::lock_guard lock(mutex_);
    // It may be done already.
    if (self_ == nullptr) registry_.Leave(session_id, this);
  }

  template <typename What>
  void Commit(const Producer& producer, What what) {
    CommitItem item{.producer = producer, .what = std::move(what)};
    uint64_t seq = 0;
    if (const auto* checked = std::get_if<CheckedChunk>(&item.what)) {
      seq = checked->chunk.seq();
    } else if (const auto* lost = std::get_if<v1::Lost>(&item.what)) {
      seq = lost->from();
    }
    const bool is_hello = std::holds_alternative<v1::Hello>(item.what);
    {
      const std::lock_guard lock(mutex_);
      ++in_flight_;
    }
    item.done = [self = shared_from_this(), is_hello,
                 seq](const CommitResult& result) {
      self->Committed(result, is_hello, seq);
    };
    committer_.Push(std::move(item));
  }

  void Committed(const CommitResult& result, bool was_hello, uint64_t seq) {
    if (!result.status.ok()) {
      Fail(result.status);
    } else if (was_hello) {
      TakePlace();
    }
    const std::lock_guard lock(mutex_);
    --in_flight_;
    if (result.status.ok() && !failed_ && !finished_) {
      v1::Down down;
      if (was_hello) {
        greeted_ = true;
        v1::Welcome& welcome = *down.mutable_welcome();
        welcome.set_proto_version(kProtoVersion);
        welcome.set_resume_after(result.committed);
        welcome.set_max_inflight(kMaxInflight);
        welcome.set_max_chunk_bytes(kMaxChunkBytes);
        outgoing_.push_back(std::move(down));
      } else if (result.hole) {
        if (resend_asked_ != result.committed + 1) {
          resend_asked_ = result.committed + 1;
          metrics_.chunks_resent.Increment();
          down.mutable_resend()->set_expected(resend_asked_);
          outgoing_.push_back(std::move(down));
        }
      } else if (seq > 0) {
        resend_asked_ = 0;
        // One ack stands for many: update the one that is waiting.
        if (outgoing_.size() > 1 && outgoing_.back().has_ack()) {
          outgoing_.back().mutable_ack()->set_committed(result.committed);
        } else {
          down.mutable_ack()->set_committed(result.committed);
          outgoing_.push_back(std::move(down));
        }
      }
      WriteMore();
    }
    ReadMore();
    FinishWhenDue();
  }

  // These require mutex_.
  void ReadMore() {
    if (reading_ || half_closed_ || failed_ || finished_ ||
        in_flight_ >= kMaxInflight) {
      return;
    }
    reading_ = true;
    StartRead(&incoming_);
  }

  void WriteMore() {
    if (writing_ || finished_ || outgoing_.empty()) return;
    writing_ = true;
    StartWrite(&outgoing_.front());
  }

  void FinishWhenDue() {
    if (finished_ || writing_) return;
    // A failing stream still sends the acks that are due.
    if (!outgoing_.empty()) return;
    const bool complete = half_closed_ && in_flight_ == 0;
    if (!failed_ && !complete) return;
    finished_ = true;
    Finish(final_status_);
  }

  Committer& committer_;
  IngestRegistry& registry_;
  Metrics& metrics_;
  const StatusOr<Caller> caller_;

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
