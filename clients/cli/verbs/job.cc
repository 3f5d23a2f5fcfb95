// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/job.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/str_cat.h"
#include "base/uuid.h"
#include "clients/cli/doctor/doctor.h"
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

constexpr char kSlot[] = "CUDA_INJECTION64_PATH";

bool Loads(const std::string& path) {
  return InChild([&]() -> std::string {
           void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
           const bool ours = library != nullptr &&
                             dlsym(library, "InitializeInjection") != nullptr;
           return ours ? "yes" : "no";
         }) == "yes";
}

bool IsAgent(const std::string& path) {
  return std::filesystem::path(path).filename().string().rfind(
             "libreprise_agent", 0) == 0;
}

std::optional<int64_t> WholeNumber(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    return std::nullopt;
  }
  return value;
}

// Returns the start time of a process in ticks since boot: field 22 of its
// stat. The second field, the program's name, may contain blanks and
// parentheses.
std::string StartOf(pid_t pid) {
  std::ifstream file(StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; ++number) {
  }
  return fields ? field : "";
}

// Returns the Unix time of the boot in seconds: `btime` of /proc/stat.
std::optional<int64_t> Boot() {
  std::ifstream file("/proc/stat");
  std::string word;
  while (file >> word) {
    if (word == "btime" && file >> word) return WholeNumber(word);
  }
  return std::nullopt;
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
    const std::string before = Environment("PYTHONPATH");
    environment.emplace_back(
        "PYTHONPATH", before.empty() ? folder : StrCat(folder, ":", before));
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

StatusOr<std::vector<std::pair<std::string, std::string>>> TakeInjectionSlot() {
  const std::string holder = Environment(kSlot);
  std::vector<std::pair<std::string, std::string>> environment;
  if (holder == "none") return environment;
  if (!holder.empty() && !IsAgent(holder)) {
    return FailedPrecondition(StrCat(
        kSlot, " is held by ", holder,
        ": CUDA takes one tool at a time, so the slot stays with it, and "
        "kernels are recorded only while it does not have CUPTI; "
        "unset it, or say --keep-injection to be told no more"));
  }
  for (const std::string& agent : {holder, AgentLibrary()}) {
    if (agent.empty() || !Loads(agent)) continue;
    environment.emplace_back(kSlot, agent);
    environment.emplace_back("REPRISE_AGENT", agent);
    break;
  }
  return environment;
}

std::optional<Launched> LaunchedTogether() {
  const auto rank = WholeNumber(Environment("RANK"));
  const auto world = WholeNumber(Environment("WORLD_SIZE"));
  const auto local = WholeNumber(Environment("LOCAL_WORLD_SIZE"));
  if (!rank || !world || *world < 2 || local != world || *rank >= *world) {
    return std::nullopt;
  }
  const pid_t parent = getppid();
  const std::string start = StartOf(parent);
  const auto ticks = WholeNumber(start);
  const auto boot = Boot();
  const int64_t per_second = sysconf(_SC_CLK_TCK);
  if (!ticks || !boot || per_second <= 0) return std::nullopt;
  const std::string name = StrCat(*boot, " ", parent, " ", start, " ",
                                  Environment("TORCHELASTIC_RESTART_COUNT"));
  return Launched{
      .rank = static_cast<int>(*rank),
      .run_id = UuidOf(*boot * 1000 + *ticks * 1000 / per_second, name)};
}

}  // namespace reprise::cli
