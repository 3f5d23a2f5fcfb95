// SPDX-License-Identifier: Apache-2.0
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>

#include "base/str_cat.h"
#include "clients/cli/doctor/doctor.h"

namespace reprise::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostLines = 12;

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  uid_t uid = 0;
  std::string name;
  bool readable = false;  // its maps, its environment, its files
  bool cuda = false;      // has the driver's library
  bool agent = false;     // has ours
  bool ring = false;      // has begun a session
  std::map<std::string, std::string> environment;

  std::string Setting(const char* key) const {
    const auto found = environment.find(key);
    return found == environment.end() ? "" : found->second;
  }
};

std::string ProcFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void ReadStatus(const std::string& folder, Process& process) {
  std::istringstream lines(ProcFile(folder + "/status"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "Name:") words >> process.name;
    if (key == "PPid:") words >> process.parent;
    if (key == "Uid:") words >> process.uid;
  }
}

void ReadEnvironment(const std::string& folder, Process& process) {
  std::istringstream entries(ProcFile(folder + "/environ"));
  for (std::string entry; std::getline(entries, entry, '\0');) {
    const size_t equals = entry.find('=');
    if (entry.rfind("REPRISE_", 0) == 0 && equals != std::string::npos) {
      process.environment[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  }
}

// Returns whether the process holds a ring. Only the process that created the
// memfd does: a forked child closes it.
bool HoldsARing(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder + "/fd", error)) {
    const std::string to = fs::read_symlink(entry.path(), error).string();
    if (to.rfind("/memfd:reprise-ring", 0) == 0) return true;
  }
  return false;
}

std::optional<Process> ReadProcess(const std::string& number) {
  if (number.find_first_not_of("0123456789") != std::string::npos) return {};
  const std::string folder = "/proc/" + number;
  Process process;
  process.pid = static_cast<pid_t>(std::strtol(number.c_str(), nullptr, 10));
  ReadStatus(folder, process);
  if (process.name.empty()) return {};  // it is gone
  std::ifstream maps(folder + "/maps");
  for (std::string line; std::getline(maps, line);) {
    process.readable = true;
    process.cuda = process.cuda || line.find("/libcuda.so") != line.npos;
    process.agent =
        process.agent || line.find("/libreprise_agent.so") != line.npos;
  }
  if (process.agent) {
    process.ring = HoldsARing(folder);
    ReadEnvironment(folder, process);
  }
  return process;
}

// Says why a process has no session at the daemon that agents of this user
// connect to, and what to do.
Check WhyNotSeen(const Process& process,
                 const std::map<pid_t, Process>& processes,
                 const Sessions& sessions) {
  Check check{Health::kWarning, "process",
              StrCat("pid ", process.pid, " (", process.name, ") "), ""};
  const auto parent = processes.find(process.parent);
  if (!process.readable) {
    check.found += "is on a GPU and belongs to " + UserName(process.uid) +
                   ": what it has loaded cannot be read";
    check.advice = "ask as that user, or as root";
  } else if (!process.agent) {
    check.found += "uses CUDA and has not loaded the agent";
    check.advice =
        "start it with `reprise run -- ...`, or call reprise.auto in it";
  } else if (const std::string sink = process.Setting("REPRISE_SINK");
             !sink.empty()) {
    check.health = Health::kOk;
    check.found += "writes its records to " + sink + " (REPRISE_SINK)";
    check.advice = "when it has ended, `reprise import` reads that file";
  } else if (!process.ring && parent != processes.end() &&
             parent->second.agent) {
    check.health = Health::kOk;
    check.found += StrCat("was forked from pid ", process.parent,
                          " and is inert, as forked children are");
  } else if (!process.ring) {
    check.found += "has loaded the agent, but has not begun a step";
    check.advice =
        "a session begins with the first step: is the model wrapped, is "
        "reprise_step called?";
  } else if (process.uid != geteuid()) {
    check.found += "runs as " + UserName(process.uid) +
                   ", whose agents look at a socket of their own";
    check.advice = "ask as that user, or let both use /run/reprise";
  } else if (const std::string socket = process.Setting("REPRISE_SOCKET");
             socket != sessions.socket &&
             !(socket.empty() && sessions.is_usual)) {
    check.found += StrCat("looks at another socket, ",
                          socket.empty() ? "the usual one" : socket,
                          ", and not at ", sessions.socket);
    check.advice =
        socket.empty()
            ? std::string("ask there: without REPRISE_SOCKET")
            : StrCat("ask there: REPRISE_SOCKET=", socket, " reprise doctor");
  } else if (!sessions.daemon) {
    check.found += "keeps its newest records in its ring: no daemon runs here";
    check.advice = "start `reprise serve`: it connects by itself in seconds";
  } else {
    check.found +=
        "has a ring and no session here: it was refused, or has a daemon of "
        "its own";
    check.advice =
        "its own log says which; `reprise status` lists what is connected";
  }
  return check;
}

// Those of other users, in sum: why each is not seen, its user can ask.
Check StrangersCheck(size_t count, const std::set<std::string>& users) {
  std::string names;
  for (const std::string& user : users) {
    names += StrCat(names.empty() ? "" : ", ", user);
  }
  return {Health::kOk, "process",
          StrCat(count, count == 1 ? " process of " : " processes of ", names,
                 count == 1 ? " uses" : " use",
                 " CUDA or the agent and is no job here; that user can ask "
                 "why"),
          ""};
}

}  // namespace

std::string UserName(uid_t uid) {
  const passwd* user = getpwuid(uid);
  return user != nullptr ? user->pw_name : StrCat("uid ", uid);
}

std::vector<Check> CheckProcesses(const Sessions& sessions,
                                  const std::vector<pid_t>& on_gpu) {
  std::map<pid_t, Process> processes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const auto process = ReadProcess(entry.path().filename().string());
    if (process) processes.emplace(process->pid, *process);
  }
  std::vector<Check> unseen;
  size_t strangers = 0;
  std::set<std::string> users;
  for (const auto& [pid, process] : processes) {
    const bool listed =
        std::find(on_gpu.begin(), on_gpu.end(), pid) != on_gpu.end();
    const bool ours = pid == getpid() || process.parent == getpid();
    if (!(process.cuda || process.agent || listed) || ours) continue;
    if (sessions.pids.count(pid) != 0) continue;
    if (geteuid() == 0 && process.uid != 0) {  // root sees those of all users
      ++strangers;
      users.insert(UserName(process.uid));
      continue;
    }
    unseen.push_back(WhyNotSeen(process, processes, sessions));
  }
  // Warnings first.
  std::stable_sort(
      unseen.begin(), unseen.end(), [](const Check& a, const Check& b) {
        return a.health == Health::kWarning && b.health != Health::kWarning;
      });
  const size_t more =
      unseen.size() > kMostLines ? unseen.size() - kMostLines : 0;
  unseen.resize(unseen.size() - more);
  Check count{
      Health::kOk, "sessions",
      StrCat(sessions.pids.size(), sessions.pids.size() == 1 ? " job" : " jobs",
             " connected"),
      ""};
  if (strangers > 0) {
    unseen.push_back(StrangersCheck(strangers, users));
  } else if (unseen.empty()) {
    count.found += "; no other process here uses CUDA or has the agent";
  }
  if (more > 0) {
    count.found += StrCat("; ", more, " more processes than are listed");
  }
  unseen.insert(unseen.begin(), std::move(count));
  return unseen;
}

}  // namespace reprise::cli
