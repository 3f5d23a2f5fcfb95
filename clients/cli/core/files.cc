// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/fd.h"
#include "base/str_cat.h"
#include "formats/convert/digest.h"
#include "formats/convert/graph_json.h"
#include "formats/convert/graph_proto.h"

namespace reprise::cli {
namespace {

namespace fs = std::filesystem;

// Leaves room for file names within the 107 characters of a socket's path.
constexpr size_t kLongestFolder = 80;

Status SystemError(const std::string& path, const char* what, int error) {
  const std::string message =
      StrCat(path, ": cannot ", what, ": ", std::strerror(error));
  if (error == ENOENT && std::string_view(what) == "read") {
    return NotFound(StrCat(path, ": no such file; check the path"));
  }
  if (error == EACCES || error == EPERM || error == EROFS) {
    return PermissionDenied(message);
  }
  if (error == ENOSPC) return ResourceExhausted(message);
  return FailedPrecondition(message);
}

Status WriteAll(int fd, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path, "write", errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

// Returns the directory part, or "." without one.
std::string FolderOf(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

StatusOr<std::string> ReadFile(const std::string& path, int64_t most) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return SystemError(path, "read", errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return SystemError(path, "read", errno);
  if (S_ISDIR(info.st_mode)) {
    return FailedPrecondition(StrCat(path, ": is a folder; name a file in it"));
  }
  std::string text;
  std::string block(size_t{1} << 20, '\0');
  while (true) {
    const ssize_t n = read(fd.get(), block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path, "read", errno);
    if (n == 0) break;
    text.append(block.data(), static_cast<size_t>(n));
    if (static_cast<int64_t>(text.size()) > most) {
      return FailedPrecondition(StrCat(path, ": larger than ",
                                       FormatBytes(most),
                                       ", the most that is read"));
    }
  }
  if (text.empty()) {
    return FailedPrecondition(StrCat(path, ": the file is empty"));
  }
  return text;
}

bool Exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

bool LooksLikeFile(const std::string& text) {
  return Exists(text) || text.find('/') != std::string::npos ||
         text.find('.') != std::string::npos;
}

bool FolderIsWritable(const std::string& path) {
  // Creates a file to find out: for root, access() succeeds even where the file
  // system (NFS, /proc) refuses.
  std::string probe = path + "/.reprise-XXXXXX";
  const Fd fd(mkostemp(probe.data(), O_CLOEXEC));
  if (fd.get() < 0) return false;
  unlink(probe.c_str());
  return true;
}

Status CheckWritable(const std::string& path, bool force) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) {
      return FailedPrecondition(
          StrCat(path, ": is a folder; name a file in it"));
    }
    if (!S_ISREG(info.st_mode)) return OkStatus();
    if (!force) {
      return AlreadyExists(
          StrCat(path,
                 ": exists already; pass --force to replace it, or name "
                 "another file"));
    }
  } else if (errno != ENOENT) {
    return SystemError(path, "write", errno);
  }
  const std::string folder = FolderOf(path);
  if (!Exists(folder)) {
    return NotFound(StrCat(path, ": there is no folder ", folder));
  }
  errno = 0;
  if (!FolderIsWritable(folder)) {
    return PermissionDenied(StrCat(path, ": cannot write into ", folder, ": ",
                                   std::strerror(errno),
                                   "; name a file in another folder"));
  }
  return OkStatus();
}

Status WriteFile(const std::string& path, std::string_view text, bool force) {
  RETURN_IF_ERROR(CheckWritable(path, force));
  struct stat info {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    const Fd device(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (device.get() < 0) return SystemError(path, "write", errno);
    return WriteAll(device.get(), path, text);
  }
  std::error_code error;
  const std::string target =
      exists ? fs::canonical(path, error).string() : path;
  if (error) return SystemError(path, "write", error.value());

  std::string temporary = target + ".XXXXXX";
  const Fd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (fd.get() < 0) return SystemError(path, "write", errno);
  const mode_t mask = umask(0);
  umask(mask);
  Status status = WriteAll(fd.get(), path, text);
  if (status.ok() && fchmod(fd.get(), 0666 & ~mask) != 0) {
    status = SystemError(path, "write", errno);
  }
  if (status.ok() && fsync(fd.get()) != 0) {
    status = SystemError(path, "write", errno);
  }
  if (status.ok()) {
    // link() fails if the name exists, so two commands that start at the same
    // time cannot replace each other's file without --force.
    const bool moved = force ? rename(temporary.c_str(), target.c_str()) == 0
                             : link(temporary.c_str(), target.c_str()) == 0;
    if (!moved) status = SystemError(path, "write", errno);
    if (moved && force) return OkStatus();
  }
  unlink(temporary.c_str());
  return status;
}

StatusOr<GraphFile> ReadGraph(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadFile(path, formats::kMaxGraphTextBytes));
  StatusOr<v1::StepGraph> graph = path.ends_with(".pb")
                                      ? formats::ReadGraphBytes(text)
                                      : formats::ReadGraphText(text);
  if (!graph.ok()) {
    return Status(graph.status().code(),
                  StrCat(path, ": ", graph.status().message()));
  }
  GraphFile file;
  file.graph = *std::move(graph);
  file.graph_id = formats::HexId(formats::IdOf(file.graph.SerializeAsString()));
  return file;
}

std::string PlanPathFor(const std::string& graph_path) {
  std::string name = fs::path(graph_path).filename().string();
  for (const std::string_view end : {".json", ".pb", ".graph"}) {
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  }
  name += ".plan.json";
  const std::string folder = fs::path(graph_path).parent_path().string();
  if (folder.empty() || !FolderIsWritable(folder)) return name;
  return folder + "/" + name;
}

std::string PlanPathBeside(const std::string& plan_path,
                           const std::string& budget) {
  constexpr std::string_view kEnd = ".plan.json";
  return StrCat(plan_path.substr(0, plan_path.size() - kEnd.size()), ".",
                budget, kEnd);
}

StatusOr<std::string> NewFolder(const std::string& name) {
  const char* named = std::getenv("TMPDIR");
  std::string base = named != nullptr ? named : "";
  if (base.empty() || base[0] != '/' || base.size() > kLongestFolder) {
    base = "/tmp";
  }
  std::string pattern = StrCat(base, "/", name, "-XXXXXX");
  if (mkdtemp(pattern.data()) == nullptr) {
    return FailedPrecondition(StrCat(base, ": no folder can be made there: ",
                                     std::strerror(errno), "; set TMPDIR"));
  }
  return pattern;
}

}  // namespace reprise::cli
