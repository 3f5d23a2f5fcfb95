// SPDX-License-Identifier: Apache-2.0
#include "formats/import/run_upload.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/str_cat.h"
#include "reprise/v1/planner.grpc.pb.h"

namespace reprise::formats {

namespace {

constexpr uint64_t kMostInFlight = 32;
constexpr size_t kPartBytes = 1 << 20;

Status FromServer(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return {static_cast<Code>(status.error_code()), status.error_message()};
}

}  // namespace

// One thread reads the answers; the caller writes.
struct RunUpload::State {
  grpc::ClientContext context;
  std::unique_ptr<v1::Ingest::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream;
  std::thread reader;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t sent = 0;
  uint64_t committed = 0;
  uint64_t resend = 0;  // requested by the server, which missed something
  bool ended = false;

  void Read() {
    for (v1::Down down; stream->Read(&down);) {
      const std::lock_guard lock(mutex);
      if (down.has_ack())
        committed = std::max(committed, down.ack().committed());
      if (down.has_resend()) resend = down.resend().expected();
      changed.notify_all();
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }

  Status Finish() {
    if (reader.joinable()) reader.join();
    return FromServer(stream->Finish());
  }
};

RunUpload::RunUpload(std::shared_ptr<grpc::Channel> channel)
    : state_(std::make_unique<State>()) {
  state_->stub = v1::Ingest::NewStub(std::move(channel));
  state_->stream = state_->stub->Stream(&state_->context);
  state_->reader = std::thread([state = state_.get()] { state->Read(); });
}

RunUpload::~RunUpload() {
  if (!state_->reader.joinable()) return;
  state_->context.TryCancel();
  (void)state_->Finish();  // the result does not matter
}

Status RunUpload::Send(const v1::Up& up) {
  {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] {
      return state_->ended || state_->resend != 0 ||
             state_->sent < state_->committed + kMostInFlight;
    });
    if (up.has_chunk()) state_->sent = up.chunk().seq();
  }
  if (state_->stream->Write(up)) return OkStatus();
  const Status status = state_->Finish();
  return status.ok() ? Unavailable("the server ended the stream") : status;
}

Status RunUpload::Close() {
  {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] {
      return state_->ended || state_->resend != 0 ||
             state_->committed >= state_->sent;
    });
  }
  state_->stream->WritesDone();
  RETURN_IF_ERROR(state_->Finish());
  if (state_->committed >= state_->sent) return OkStatus();
  return Unavailable(StrCat("the server stored ", state_->committed, " of ",
                            state_->sent, " chunks; import again"));
}

StatusOr<std::string> UploadGraph(const std::shared_ptr<grpc::Channel>& channel,
                                  const std::string& run_id,
                                  const v1::StepGraph& graph) {
  const auto stub = v1::Planner::NewStub(channel);
  grpc::ClientContext context;
  v1::GraphRef ref;
  const auto stream = stub->PutGraph(&context, &ref);
  const std::string bytes = graph.SerializeAsString();
  for (size_t at = 0; at < bytes.size(); at += kPartBytes) {
    v1::GraphPart part;
    part.set_data(bytes.substr(at, kPartBytes));
    if (at == 0) part.set_run_id(run_id);
    if (!stream->Write(part)) break;
  }
  stream->WritesDone();
  RETURN_IF_ERROR(FromServer(stream->Finish()));
  return ref.graph_id();
}

}  // namespace reprise::formats
