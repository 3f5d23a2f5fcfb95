// SPDX-License-Identifier: Apache-2.0
#include "server/collect/ingest_stream.h"

#include <utility>

namespace reprise::server {

std::shared_ptr<IngestStream> IngestStream::Open(
    v1::Ingest::Stub& stub, const v1::Up& hello,
    std::shared_ptr<Signal> signal) {
  auto stream = std::make_shared<IngestStream>();
  stream->signal_ = std::move(signal);
  stream->self_ = stream;
  stream->context_.set_wait_for_ready(true);
  stub.async()->Stream(&stream->context_, stream.get());
  stream->AddHold();
  {
    const std::lock_guard lock(stream->mutex_);
    stream->writing_ = hello;
    stream->write_under_way_ = true;
    stream->StartWrite(&stream->writing_);
    stream->StartRead(&stream->reading_);
  }
  stream->StartCall();
  return stream;
}

bool IngestStream::writable() const {
  const std::lock_guard lock(mutex_);
  return held_ && !write_under_way_ && !write_failed_ && !half_closed_;
}

void IngestStream::Write(v1::Up message) {
  {
    const std::lock_guard lock(mutex_);
    writing_ = std::move(message);
    write_under_way_ = true;
  }
  StartWrite(&writing_);
}

void IngestStream::HalfClose() {
  {
    const std::lock_guard lock(mutex_);
    if (half_closed_ || !held_) return;
    half_closed_ = true;
  }
  StartWritesDone();
}

bool IngestStream::TakeAnswer(v1::Down& answer) {
  const std::lock_guard lock(mutex_);
  if (answers_.empty()) return false;
  answer = std::move(answers_.front());
  answers_.pop_front();
  return true;
}

bool IngestStream::Over(grpc::Status& status) {
  bool release = false;
  {
    const std::lock_guard lock(mutex_);
    if (!answers_.empty()) return false;
    if (done_) {
      status = status_;
      return true;
    }
    release = std::exchange(held_, held_ && !read_closed_) && !held_;
  }
  if (release) RemoveHold();
  return false;
}

void IngestStream::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    write_under_way_ = false;
    write_failed_ = write_failed_ || !ok;
  }
  signal_->Raise();
}

void IngestStream::OnReadDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    if (ok) {
      answers_.push_back(std::move(reading_));
      reading_.Clear();
    } else {
      read_closed_ = true;
    }
  }
  if (ok) StartRead(&reading_);
  signal_->Raise();
}

void IngestStream::OnDone(const grpc::Status& status) {
  std::shared_ptr<IngestStream> self;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    status_ = status;
    self = std::move(self_);
  }
  signal_->Raise();
}

}  // namespace reprise::server
