// SPDX-License-Identifier: Apache-2.0
#include "server/net/import_upload.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "base/str_cat.h"
#include "formats/import/import_file.h"
#include "server/core/change.h"
#include "server/core/log.h"
#include "server/net/connect.h"
#include "server/net/http.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostNameBytes = 200;
constexpr auto kProgressPause = std::chrono::milliseconds(100);
constexpr size_t kMostUnsent = 4;

// Returns the value of `name` in a query: the file's name on the page. It is
// only shown, never opened.
std::string FileName(std::string_view query) {
  std::string name = QueryValue(query, "name");
  name.erase(0, name.find_last_of("/\\") + 1);
  std::erase_if(name, [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  name = ValidUtf8(name, kMostNameBytes);
  return name.empty() ? "file" : name;
}

std::string Line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace

// One upload on disk, which counts towards kMaxImports. The file has no name,
// so nothing is left behind whatever happens.
class ImportUploads::File {
 public:
  explicit File(std::atomic<int>& open) : open_(open) {}
  ~File() { --open_; }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  Status Append(const std::string& folder, std::string_view bytes) {
    if (!fd_.valid()) {
      std::string path = folder + "/import-XXXXXX";
      fd_ = Fd(::mkostemp(path.data(), O_CLOEXEC));
      if (!fd_.valid()) return Failed(folder, errno);
      ::unlink(path.c_str());
    }
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed(folder, errno);
      bytes.remove_prefix(static_cast<size_t>(n));
      bytes_ += static_cast<uint64_t>(n);
    }
    return OkStatus();
  }

  uint64_t bytes() const { return bytes_; }
  // A path that opens the same file with a position of its own.
  std::string path() const { return StrCat("/proc/self/fd/", fd_.get()); }

 private:
  static Status Failed(const std::string& folder, int error) {
    return error == ENOSPC || error == EDQUOT
               ? ResourceExhausted(
                     StrCat("there is no room for it in ", folder,
                            "; free some, or use `reprise import`, which "
                            "reads the file where it is"))
               : FailedPrecondition(StrCat("cannot be kept in ", folder, ": ",
                                           std::strerror(error)));
  }

  std::atomic<int>& open_;
  Fd fd_;
  uint64_t bytes_ = 0;
};

class ImportUploads::Upload final : public HttpUpload {
 public:
  Upload(ImportUploads& owner, std::string name, Caller caller)
      : owner_(owner),
        name_(std::move(name)),
        caller_(std::move(caller)),
        file_(std::make_shared<File>(owner.open_)) {}

  void Take(std::string part, Next next) override {
    auto work = [this, part = std::move(part), next] {
      const Status status = file_->Append(owner_.folder_, part);
      next(status.ok() ? std::nullopt : std::optional(Refusal(Named(status))));
    };
    if (!owner_.workers_.Post(std::move(work))) next(Refusal(Busy()));
  }

  HttpResponse TooLarge() const override {
    return Refusal(
        413, Named(ResourceExhausted(StrCat(
                 "is larger than ",
                 FormatBytes(static_cast<int64_t>(owner_.max_bytes_)),
                 ", the most that is taken here; use `reprise import`"))));
  }

  void Finish(std::shared_ptr<HttpReply> reply) override {
    auto work = [&owner = owner_, file = file_, name = name_, caller = caller_,
                 reply] { owner.Import(*file, name, caller, *reply); };
    if (!owner_.workers_.Post(std::move(work))) reply->Respond(Refusal(Busy()));
  }

 private:
  Status Named(const Status& status) const {
    return Status(status.code(), StrCat(name_, ": ", status.message()));
  }
  Status Busy() const {
    return Named(Unavailable(
        "the server is shutting down; drop the file again when it is back"));
  }

  ImportUploads& owner_;
  const std::string name_;
  const Caller caller_;
  const std::shared_ptr<File> file_;
};

// One thread per allowed upload, so that none waits for another.
ImportUploads::ImportUploads(std::string folder,
                             std::shared_ptr<grpc::Channel> channel,
                             Store& store, IdentifyCaller identify,
                             uint64_t max_bytes)
    : folder_(std::move(folder)),
      channel_(std::move(channel)),
      store_(store),
      identify_(std::move(identify)),
      max_bytes_(max_bytes),
      workers_(kMaxImports, size_t{2} * kMaxImports) {}

ImportUploads::~ImportUploads() { Stop(); }

void ImportUploads::Stop() {
  stopping_ = true;
  workers_.Stop();
}

HttpUploadStart ImportUploads::Begin(const HttpRequest& head,
                                     const Access& access) {
  const std::string name = FileName(head.query);
  const std::string_view type = head.Header("content-type");
  if (head.method != "POST") {
    return {.refused = Refusal(
                405, InvalidArgument("/import takes POST, with the file as "
                                     "the body"))};
  }
  if (type != "application/octet-stream") {
    return {.refused = Refusal(
                415, InvalidArgument(StrCat(name,
                                            ": must be sent as "
                                            "application/octet-stream, as it "
                                            "is")))};
  }
  if (open_.fetch_add(1) >= kMaxImports) {
    --open_;
    return {.refused = Refusal(ResourceExhausted(
                StrCat(name, ": ", kMaxImports,
                       " files are being imported already; try again when "
                       "one is done")))};
  }
  return {.upload = std::make_unique<Upload>(*this, name,
                                             identify_(head.peer, access)),
          .max_bytes = max_bytes_};
}

void ImportUploads::Import(const File& file, const std::string& name,
                           const Caller& caller, HttpReply& reply) {
  reply.BeginStream(200, {{"Content-Type", "application/x-ndjson"},
                          {"Cache-Control", "no-store"},
                          {"X-Content-Type-Options", "nosniff"}});
  // Every importer reads the file twice.
  const double all =
      2.0 * static_cast<double>(std::max<uint64_t>(file.bytes(), 1));
  uint64_t before = 0;  // total of completed readings
  uint64_t last = 0;
  bool sending = false;
  Clock::time_point said{};
  const auto watch = [&](uint64_t at) -> Status {
    if (stopping_) return Unavailable("the server is shutting down");
    if (!sending && reply.cancelled()) return Cancelled("nobody waits for it");
    last = at;
    if (Clock::now() - said < kProgressPause || reply.unsent() > kMostUnsent) {
      return OkStatus();
    }
    said = Clock::now();
    const double done = static_cast<double>(before + at) / all;
    reply.Write(Line({{"progress", std::min(done, 1.0)}}));
    return OkStatus();
  };
  const formats::OpenSource open = [&]() -> StatusOr<formats::ByteSource> {
    if (file.bytes() == 0) return formats::ByteSource::Over({});
    ASSIGN_OR_RETURN(formats::ByteSource source,
                     formats::ByteSource::OpenFile(file.path()));
    before += std::exchange(last, 0);
    source.Watch(watch);
    return source;
  };
  const formats::RunIdentity identity = formats::NewIdentity();
  const auto import = formats::ImportedFile::Read(
      open, {.file = name, .name = name, .device = {}, .step = {}});
  sending = true;
  Status status = import.status();
  if (status.ok()) {
    status = store_.Write([&](Database& db) {
      return ClaimRun(db, identity.run_id, caller, RealtimeNs());
    });
  }
  if (status.ok()) status = import->Send(channel_, identity);
  Change change{.caller = caller,
                .action = "import",
                .run_id = status.ok() ? identity.run_id : "",
                .subject = name};
  change.End(status);
  LogChange(change);
  if (!status.ok()) {
    LogInfo("import_failed", StrCat("not imported: ", status.message()),
            {{"file", name}});
    reply.Write(StrCat("{\"error\":", ErrorJson(status), "}\n"));
    reply.End();
    return;
  }
  const formats::MemorySummary& summary = import->summary();
  LogInfo("imported",
          StrCat("imported ", name, " (",
                 FormatBytes(static_cast<int64_t>(file.bytes())), ", ",
                 summary.format, ") as run ", identity.run_id),
          {{"run_id", identity.run_id},
           {"file", name},
           {"bytes", static_cast<int64_t>(file.bytes())}});
  const v1::StepGraph* graph = import->graph();
  reply.Write(Line({{"run",
                     {{"runId", identity.run_id},
                      {"name", summary.name},
                      {"format", summary.format},
                      {"events", summary.events},
                      {"ops", graph == nullptr ? 0 : graph->ops_size()},
                      {"notes", summary.notes}}}}));
  reply.End();
}

}  // namespace reprise::server
