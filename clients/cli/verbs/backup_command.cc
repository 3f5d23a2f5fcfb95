// SPDX-License-Identifier: Apache-2.0
//
// reprise backup FILE: copies the server's current database to a file.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"
#include "clients/cli/core/console.h"
#include "clients/cli/server/open_channel.h"
#include "clients/cli/server/server_client.h"
#include "reprise/v1/admin.grpc.pb.h"

namespace reprise::cli {
namespace {

// A new file of mode 0600, which is deleted unless it is kept.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)) {}
  ~NewFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    if (!kept_) ::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  Status Make() {
    fd_ = ::open(path_.c_str(),
                 O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd_ >= 0) return OkStatus();
    if (errno == EEXIST) {
      return AlreadyExists(
          StrCat(path_, ": exists already; name another file, or move it"));
    }
    return Failed();
  }

  Status Append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed();
      bytes.remove_prefix(static_cast<size_t>(n));
      bytes_ += n;
    }
    return OkStatus();
  }

  Status Keep() {
    if (::fsync(fd_) != 0) return Failed();
    kept_ = true;
    return OkStatus();
  }

  int64_t bytes() const { return bytes_; }

 private:
  Status Failed() const {
    return FailedPrecondition(
        StrCat(path_, ": cannot be written: ", std::strerror(errno)));
  }

  const std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
  bool kept_ = false;
};

class BackupCommand : public Command {
 public:
  void Define(CommandLine& line) override {
    Verb& verb =
        line.AddVerb("backup", "Copy the server's database into a new file");
    verb.Add("FILE", path_, "A file that does not exist yet",
             {.required = true});
    verb.Footer(
        "The server keeps running. To restore the copy: stop the server, put "
        "the "
        "file into its\ndata folder as reprise.db, remove reprise.db-wal and "
        "reprise.db-shm, start it.\n\nExample:\n  reprise backup "
        "reprise-monday.db");
  }

  int Run(const Globals& globals, Console& console) override {
    const auto client = ServerClient::Connect(globals);
    if (!client.ok()) return console.Error(client.status());
    NewFile file(path_);
    if (const Status made = file.Make(); !made.ok()) return console.Error(made);
    const Status copied = Copy(*client, file, console);
    console.ClearProgress();
    if (!copied.ok()) return console.Error(copied);
    if (globals.json) {
      const nlohmann::ordered_json json = {{"file", path_},
                                           {"bytes", file.bytes()}};
      console.Line(json.dump());
    } else {
      console.Line(StrCat(path_, ": ", FormatBytes(file.bytes())));
    }
    return kDone;
  }

 private:
  static Status Copy(const ServerClient& client, NewFile& file,
                     Console& console) {
    grpc::ClientContext context;
    const auto admin = v1::Admin::NewStub(client.channel());
    const auto stream = admin->Backup(&context, {});
    Status status;
    for (v1::BackupPart part; status.ok() && stream->Read(&part);) {
      status = file.Append(part.data());
      console.Progress(FormatBytes(file.bytes()) + " copied");
    }
    if (!status.ok()) context.TryCancel();
    const grpc::Status ended = stream->Finish();
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(FromGrpc(ended, client.endpoint()));
    return file.Keep();
  }

  std::string path_;
};

}  // namespace

std::unique_ptr<Command> MakeBackupCommand() {
  return std::make_unique<BackupCommand>();
}

}  // namespace reprise::cli
