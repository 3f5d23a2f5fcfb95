// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/server/private_daemon.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/str_cat.h"
#include "clients/cli/server/runtime_paths.h"

extern char** environ;

namespace reprise::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr auto kStartTimeout = seconds(15);
constexpr auto kPoll = milliseconds(20);

// Creates the socket's folder with mode 0700, if it is our own.
Status OwnFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return FailedPrecondition(
        StrCat(folder, ": cannot be made: ", std::strerror(errno)));
  }
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return FailedPrecondition(
        StrCat(folder, ": is not a folder; remove it or set XDG_RUNTIME_DIR"));
  }
  if (info.st_uid != geteuid()) {
    return FailedPrecondition(StrCat(folder, ": belongs to user ", info.st_uid,
                                     ", not to this one; set XDG_RUNTIME_DIR"));
  }
  return OkStatus();
}

// Held while a daemon is being started.
class StartLock {
 public:
  Status Take(const std::string& path) {
    fd_ =
        Fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd_.valid()) {
      return FailedPrecondition(
          StrCat(path, ": cannot be opened: ", std::strerror(errno)));
    }
    const auto deadline = steady_clock::now() + kStartTimeout;
    while (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return FailedPrecondition(
            StrCat(path, ": cannot be locked: ", std::strerror(errno)));
      }
      if (steady_clock::now() > deadline) {
        return FailedPrecondition(
            StrCat(path, ": held by another job for more than 15 s"));
      }
      std::this_thread::sleep_for(kPoll);
    }
    return OkStatus();
  }

 private:
  Fd fd_;
};

bool IsProgram(const std::string& path) {
  std::error_code error;  // a folder in PATH may be unreadable
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

// Returns the path of reprised: REPRISE_DAEMON, else next to this program, else
// in PATH.
StatusOr<std::string> FindReprised() {
  if (const std::string named = Environment("REPRISE_DAEMON"); !named.empty()) {
    if (IsProgram(named)) return named;
    return FailedPrecondition(
        StrCat("REPRISE_DAEMON=", named, ": is not a program"));
  }
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::string beside = (self.parent_path() / "reprised").string();
    if (IsProgram(beside)) return beside;
  }
  std::string rest = Environment("PATH");
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::string folder = rest.substr(0, colon);
    if (!folder.empty() && IsProgram(folder + "/reprised")) {
      return folder + "/reprised";
    }
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return FailedPrecondition(
      "reprised: not found beside this command or in PATH; name it with "
      "REPRISE_DAEMON");
}

// Opens an unnamed file for the daemon's output until it is ready.
int UnnamedLog(const std::string& folder) {
  return open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

std::string LastLine(int log) {
  char buffer[2048];
  const ssize_t n = log < 0 ? -1 : pread(log, buffer, sizeof buffer, 0);
  std::string text(buffer, n > 0 ? static_cast<size_t>(n) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t start = text.rfind('\n');
  if (start != std::string::npos) text = text.substr(start + 1);
  return text.empty() ? "it printed nothing" : text;
}

// Starts a process in a session of its own: Ctrl-C at the terminal is for the
// job, and the daemon must outlive the job to store the end of the run.
StatusOr<pid_t> Spawn(const std::string& program, const std::string& socket,
                      int log) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  if (log >= 0) {
    posix_spawn_file_actions_adddup2(&actions, log, 2);
  } else {
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  std::vector<std::string> words = {program,          "--private",
                                    "--agent-socket", socket,
                                    "--with-parent",  std::to_string(getpid())};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes,
                                argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return FailedPrecondition(
        StrCat(program, ": cannot be started: ", std::strerror(error)));
  }
  return pid;
}

// Returns whether the daemon listens on its socket and has written server.json,
// which it does last. A stale file of an earlier daemon is gone by then.
bool IsUp(const std::string& socket) {
  const std::string said =
      (fs::path(socket).parent_path() / "server.json").string();
  return DaemonAnswers(socket) && access(said.c_str(), R_OK) == 0;
}

// Waits until another daemon that answers is ready. Returns false if it ends or
// does not get ready.
bool AwaitOther(const std::string& socket) {
  const auto deadline = steady_clock::now() + kStartTimeout;
  while (DaemonAnswers(socket) && steady_clock::now() < deadline) {
    if (IsUp(socket)) return true;
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

Status AwaitDaemon(pid_t pid, const std::string& program,
                   const std::string& socket, int log) {
  const auto deadline = steady_clock::now() + kStartTimeout;
  while (!IsUp(socket)) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == pid) {
      return FailedPrecondition(
          StrCat(program, ": ended at once: ", LastLine(log)));
    }
    if (steady_clock::now() > deadline) {
      StopDaemon({.socket = socket, .pid = pid});
      return FailedPrecondition(StrCat(program, ": did not listen on ", socket,
                                       " within 15 s, stopped"));
    }
    std::this_thread::sleep_for(kPoll);
  }
  return OkStatus();
}

}  // namespace

Knock KnockAt(const std::string& path) {
  Knock knock;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return {ENAMETOOLONG, {}};
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  socklen_t size = sizeof knock.peer;
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof address) != 0) {
    return {errno, {}};
  }
  (void)getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &knock.peer, &size);
  return knock;
}

StatusOr<Daemon> EnsureDaemon() {
  Daemon daemon{.socket = AgentSocket()};
  // If our daemon is still starting, it has not written server.json yet;
  // whoever starts it holds the lock until it has.
  const bool ours = daemon.socket == PrivateSocket();
  const bool up = !ours || access(ServerFile().c_str(), R_OK) == 0;
  if (up && DaemonAnswers(daemon.socket)) return daemon;
  // The service's folder is not ours, so a private daemon uses our own.
  daemon.socket = PrivateSocket();
  if (daemon.socket.size() >= sizeof(sockaddr_un::sun_path)) {
    return InvalidArgument(StrCat(daemon.socket,
                                  ": too long for a socket; set "
                                  "REPRISE_SOCKET to a shorter path"));
  }
  const std::string folder = fs::path(daemon.socket).parent_path().string();
  RETURN_IF_ERROR(OwnFolder(folder));
  StartLock lock;
  RETURN_IF_ERROR(lock.Take(folder + "/start.lock"));
  if (AwaitOther(daemon.socket)) return daemon;
  ASSIGN_OR_RETURN(const std::string program, FindReprised());
  const Fd log(UnnamedLog(folder));
  ASSIGN_OR_RETURN(daemon.pid, Spawn(program, daemon.socket, log.get()));
  RETURN_IF_ERROR(AwaitDaemon(daemon.pid, program, daemon.socket, log.get()));
  return daemon;
}

void StopDaemon(const Daemon& daemon) {
  if (daemon.pid <= 0) return;
  kill(daemon.pid, SIGTERM);
  const auto deadline = steady_clock::now() + seconds(5);
  while (waitpid(daemon.pid, nullptr, WNOHANG) == 0) {
    if (steady_clock::now() > deadline) {
      kill(daemon.pid, SIGKILL);
      waitpid(daemon.pid, nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace reprise::cli
