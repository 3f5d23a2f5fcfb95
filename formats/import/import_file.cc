// SPDX-License-Identifier: Apache-2.0
#include "formats/import/import_file.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/str_cat.h"
#include "base/uuid.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"
#include "formats/import/json_kind.h"
#include "formats/import/run_upload.h"

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
          "with "
          "torch.cuda.memory._dump_snapshot, or with pickle.dump");
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
  return UploadGraph(channel, identity.run_id, *graph_).status();
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

}  // namespace reprise::formats
