// SPDX-License-Identifier: Apache-2.0
#include "formats/import/import_file.h"

#include <grpcpp/client_context.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/str_cat.h"
#include "base/uuid.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "reprise/v1/ingest.grpc.pb.h"
#include "reprise/v1/planner.grpc.pb.h"

namespace reprise::formats {
namespace {

constexpr size_t kMostGraphBytes = size_t{64} << 20;
constexpr int kPickle = 0x80;

bool BeginsJson(int first) {
  return first == '{' || first == '[' || first == ' ' || first == '\n' ||
         first == '\r' || first == '\t';
}

bool IsProtoName(std::string_view name) {
  return name.ends_with(".pb") || name.ends_with(".pb.gz");
}

StatusOr<std::string> ReadWhole(const OpenSource& open) {
  ASSIGN_OR_RETURN(ByteSource source, open());
  std::string text;
  for (int c = source.Next(); c >= 0; c = source.Next()) {
    if (text.size() == kMostGraphBytes) {
      return ResourceExhausted(StrCat(
          "larger than ", kMostGraphBytes >> 20,
          " MiB, the most a step graph may have here; plan it as a file with "
          "`reprise plan`"));
    }
    text += static_cast<char>(c);
  }
  if (!source.status().ok()) return source.status();
  return text;
}

constexpr uint64_t kMostScannedBytes = 1 << 20;
constexpr size_t kMostKeyText = 32;

std::optional<JsonKind> KindOfKey(const std::string& key) {
  if (key == "traceEvents" || key == "deviceProperties") {
    return JsonKind::kTrace;
  }
  if (key == "schedule" || key == "plan_id" || key == "planId") {
    return JsonKind::kPlan;
  }
  if (key == "ops" || key == "storages" || key == "static_bytes" ||
      key == "staticBytes") {
    return JsonKind::kGraph;
  }
  return std::nullopt;
}

std::optional<JsonKind> KindOfFormat(const std::string& format) {
  if (format.starts_with("reprise.graph/")) return JsonKind::kGraph;
  if (format.starts_with("reprise.plan/")) return JsonKind::kPlan;
  return std::nullopt;
}

// Returns the first kMostKeyText bytes of the text after an opening quote.
std::string ReadText(ByteSource& source) {
  std::string text;
  for (int c = source.Next(); c >= 0 && c != '"'; c = source.Next()) {
    if (c == '\\') c = source.Next();
    if (text.size() < kMostKeyText) text += static_cast<char>(c);
    if (source.position() > kMostScannedBytes) break;
  }
  return text;
}

constexpr uint64_t kMostInFlight = 32;
constexpr size_t kPartBytes = 1 << 20;

Status FromServer(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return {static_cast<Code>(status.error_code()), status.error_message()};
}

// Sends a run to the server as a collector would: one Ingest stream, whose
// messages are all acknowledged before Close returns. One thread reads the
// answers; the caller writes.
class RunUpload {
 public:
  explicit RunUpload(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Ingest::NewStub(channel)),
        stream_(stub_->Stream(&context_)),
        reader_([this] { Read(); }) {}
  ~RunUpload() {
    if (!reader_.joinable()) return;
    context_.TryCancel();
    (void)Finish();  // the result does not matter
  }

  // Sends a message; the first must be a Hello. Errors are the server's.
  Status Send(const v1::Up& up) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return ended_ || resend_ != 0 || sent_ < committed_ + kMostInFlight;
      });
      if (up.has_chunk()) sent_ = up.chunk().seq();
    }
    if (stream_->Write(up)) return OkStatus();
    const Status status = Finish();
    return status.ok() ? Unavailable("the server ended the stream") : status;
  }

  // To be called after Bye: waits until everything is stored.
  Status Close() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(
          lock, [&] { return ended_ || resend_ != 0 || committed_ >= sent_; });
    }
    stream_->WritesDone();
    RETURN_IF_ERROR(Finish());
    if (committed_ >= sent_) return OkStatus();
    return Unavailable(StrCat("the server stored ", committed_, " of ", sent_,
                              " chunks; import again"));
  }

 private:
  void Read() {
    for (v1::Down down; stream_->Read(&down);) {
      const std::lock_guard lock(mutex_);
      if (down.has_ack()) {
        committed_ = std::max(committed_, down.ack().committed());
      }
      if (down.has_resend()) resend_ = down.resend().expected();
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  Status Finish() {
    if (reader_.joinable()) reader_.join();
    return FromServer(stream_->Finish());
  }

  grpc::ClientContext context_;
  const std::unique_ptr<v1::Ingest::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t sent_ = 0;
  uint64_t committed_ = 0;
  uint64_t resend_ = 0;  // requested by the server, which missed something
  bool ended_ = false;
  std::thread reader_;  // last: it uses all of the above
};

Status UploadGraph(const std::shared_ptr<grpc::Channel>& channel,
                   const std::string& run_id, const v1::StepGraph& graph) {
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
  return FromServer(stream->Finish());
}

}  // namespace

const MemorySummary& ImportedFile::summary() const {
  if (snapshot_) return snapshot_->summary();
  return trace_ ? trace_->summary() : graph_summary_;
}

StatusOr<ImportedFile> ImportedFile::Read(const OpenSource& open,
                                          const ImportOptions& options) {
  ImportedFile made;
  const Status status = [&]() -> Status {
    ASSIGN_OR_RETURN(ByteSource probe, open());
    const int first = probe.Next();
    if (first < 0) {
      return probe.status().ok() ? FailedPrecondition("is empty")
                                 : probe.status();
    }
    if (IsProtoName(options.file)) return made.ReadGraph(open, options);
    if (first == kPickle) return made.ReadSnapshot(open, options);
    if (first == 'P' && probe.Next() == 'K') {
      return InvalidArgument(
          "is a ZIP archive, as torch.save writes; write a memory snapshot "
          "with torch.cuda.memory._dump_snapshot, or with pickle.dump");
    }
    if (!BeginsJson(first)) {
      return InvalidArgument(
          "is neither a memory snapshot (a pickle of protocol 2 to 5) nor a "
          "profiler trace or step graph (JSON)");
    }
    ASSIGN_OR_RETURN(ByteSource json, open());
    switch (KindOfJson(json)) {
      case JsonKind::kGraph:
        return made.ReadGraph(open, options);
      case JsonKind::kPlan:
        return FailedPrecondition(
            "is a plan, and a plan does not hold the step it is for; import "
            "the step graph it was made of and ask for the same budget");
      default:
        return made.ReadTrace(open, options);
    }
  }();
  if (status.ok()) return made;
  const std::string& text = status.message();
  return Status(status.code(), text.starts_with(options.file + ":")
                                   ? text
                                   : StrCat(options.file, ": ", text));
}

Status ImportedFile::ReadSnapshot(const OpenSource& open,
                                  const ImportOptions& options) {
  ASSIGN_OR_RETURN(snapshot_,
                   Snapshot::Open(open, options.name, options.device));
  return OkStatus();
}

Status ImportedFile::ReadTrace(const OpenSource& open,
                               const ImportOptions& options) {
  ASSIGN_OR_RETURN(
      trace_, Trace::Open(open, options.name, options.step, options.device));
  ASSIGN_OR_RETURN(TraceGraph made, GraphOfTrace(*trace_));
  trace_->AddNote(made.graph.note());
  RETURN_IF_ERROR(ToPlanner(made.graph).status());
  graph_ = std::move(made.graph);
  return OkStatus();
}

Status ImportedFile::ReadGraph(const OpenSource& open,
                               const ImportOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, ReadWhole(open));
  ASSIGN_OR_RETURN(graph_, IsProtoName(options.file) ? ReadGraphBytes(text)
                                                     : ReadGraphText(text));
  graph_summary_.name = options.name;
  graph_summary_.format = "step graph";
  graph_summary_.peak_bytes = graph_->measured_peak_bytes();
  graph_summary_.duration_ns = graph_->measured_step_ns();
  graph_summary_.notes.emplace_back(
      "a step graph holds no measurement: every curve is predicted");
  return OkStatus();
}

bool ImportedFile::folds() const { return RunWriter::Folds(summary()); }

Status ImportedFile::Send(const std::shared_ptr<grpc::Channel>& channel,
                          const RunIdentity& identity) const {
  RunUpload upload(channel);
  RecordingNames names;
  RunWriter writer(identity, summary(), names,
                   [&](const v1::Up& up) { return upload.Send(up); });
  if (!has_memory()) {
    RETURN_IF_ERROR(writer.WriteWithoutMemory());
  } else {
    RETURN_IF_ERROR(writer.Begin());
    // An error of the upload is not one of the file: a reader would say at which
    // byte of it.
    Status sent = OkStatus();
    const auto take = [&](const auto& one) { return sent = writer.Add(one); };
    const auto segment = [&](const RecordedSegment& one) { return take(one); };
    const auto replay = [&]() -> Status {
      RETURN_IF_ERROR(snapshot_ ? snapshot_->Replay(names, take, segment)
                                : trace_->Replay(names, take, take));
      return trace_ ? trace_->ReplayKernels(names, take) : OkStatus();
    };
    const Status read = replay();
    RETURN_IF_ERROR(sent);
    RETURN_IF_ERROR(read);
    RETURN_IF_ERROR(writer.End(summary().duration_ns));
  }
  RETURN_IF_ERROR(upload.Close());
  if (!graph_) return OkStatus();
  return UploadGraph(channel, identity.run_id, *graph_);
}

RunIdentity NewIdentity() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return {.run_id = NewUuid(),
          .session_id = NewUuid(),
          .host = host,
          .now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count()};
}

JsonKind KindOfJson(ByteSource& source) {
  int depth = 0;
  std::string text;    // last text at depth 1
  bool value = false;  // after "format":
  for (int c = source.Next(); c >= 0; c = source.Next()) {
    if (source.position() > kMostScannedBytes) break;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == '"') {
      std::string next = ReadText(source);
      if (depth != 1) continue;
      text = std::move(next);
      if (!value) continue;
      if (const auto kind = KindOfFormat(text)) return *kind;
    }
    if (depth != 1) continue;
    if (c == ',') value = false;
    if (c == ':') {
      if (const auto kind = KindOfKey(text)) return *kind;
      value = text == "format";
    }
  }
  return JsonKind::kTrace;
}

}  // namespace reprise::formats
