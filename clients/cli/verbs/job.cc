// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/job.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/str_cat.h"
#include "clients/cli/server/runtime_paths.h"

extern char** environ;

namespace reprise::cli {
namespace {

constexpr int kForwarded[] = {SIGINT,  SIGQUIT, SIGTERM, SIGHUP,
                              SIGUSR1, SIGUSR2, SIGCONT};

volatile pid_t g_job = 0;

// The terminal sends its signals to the whole process group (si_code is then
// SI_KERNEL), so the job has received them already.
void Forward(int number, siginfo_t* info, void*) {
  if (g_job > 0 && info->si_code != SI_KERNEL) kill(g_job, number);
}

Status CannotStart(const std::string& program, int error) {
  const std::string message =
      StrCat(program, ": cannot be started: ", std::strerror(error));
  return error == ENOENT ? NotFound(message) : PermissionDenied(message);
}

}  // namespace

Status CheckProgram(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    return access(program.c_str(), X_OK) == 0 ? OkStatus()
                                              : CannotStart(program, errno);
  }
  const char* const set = getenv("PATH");
  const std::string path = set == nullptr ? "/bin:/usr/bin" : set;
  int error = ENOENT;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    // An empty entry is the working folder.
    const std::string file =
        StrCat(end == at ? "." : path.substr(at, end - at), "/", program);
    if (access(file.c_str(), X_OK) == 0) return OkStatus();
    if (errno == EACCES) error = EACCES;
    at = end + 1;
  }
  return CannotStart(program, error);
}

Variables Attached(const std::string& socket) {
  Variables environment{{"REPRISE_SOCKET", socket}};
  if (const std::string folder = LaunchFolder(); !folder.empty()) {
    const char* const before = getenv("PYTHONPATH");
    const bool alone = before == nullptr || *before == '\0';
    environment.emplace_back(
        "PYTHONPATH",
        alone ? folder : StrCat(folder, ":", std::string(before)));
  }
  return environment;
}

StatusOr<JobResult> RunJob(const std::vector<std::string>& command,
                           const Variables& environment) {
  for (const auto& [name, value] : environment) {
    setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  // Blocked until the child's pid is known, so that no signal is lost. The
  // child gets the mask and the dispositions that this process had at its
  // start.
  sigset_t forwarded;
  sigset_t before;
  sigemptyset(&forwarded);
  for (const int number : kForwarded) sigaddset(&forwarded, number);
  sigprocmask(SIG_BLOCK, &forwarded, &before);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigmask(&attributes, &before);
  sigset_t defaults;  // we ignore SIGPIPE; the job should not
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, command[0].c_str(), nullptr, &attributes,
                                 argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return CannotStart(command[0], error);
  }
  g_job = pid;
  struct sigaction action {};
  action.sa_sigaction = Forward;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int number : kForwarded) {
    struct sigaction old {};
    sigaction(number, nullptr, &old);
    // Signals that were ignored from outside (nohup) stay ignored.
    if (old.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);

  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  g_job = 0;
  if (WIFSIGNALED(status)) {
    return JobResult{.exit_code = 128 + WTERMSIG(status),
                     .signal = WTERMSIG(status)};
  }
  return JobResult{.exit_code = WEXITSTATUS(status)};
}

}  // namespace reprise::cli
