// SPDX-License-Identifier: Apache-2.0
#include "tests/server/postgres_cluster.h"

#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/str_cat.h"

namespace reprise::server {

namespace {

constexpr uid_t kNobody = 65534;

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "PostgreSQL for tests: %s\n", why.c_str());
  std::abort();
}

// The folder of initdb and postgres: Debian keeps them out of PATH.
std::string Programs() {
  std::string newest;
  std::error_code error;
  for (const auto& version :
       std::filesystem::directory_iterator("/usr/lib/postgresql", error)) {
    const std::string bin = version.path().string() + "/bin";
    if (::access((bin + "/postgres").c_str(), X_OK) == 0 && bin > newest) {
      newest = bin;
    }
  }
  if (newest.empty()) {
    Die("there is none in /usr/lib/postgresql; run scripts/setup --tests");
  }
  return newest;
}

// Starts a program that ends with this thread; as nobody if this is root.
pid_t Spawn(const std::vector<std::string>& command,
            const std::string& folder) {
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  if (::geteuid() == 0 && (::setgroups(0, nullptr) != 0 ||
                           ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) {
    ::_exit(126);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGQUIT);
  if (::chdir(folder.c_str()) != 0 ||
      std::freopen((folder + "/log").c_str(), "a", stdout) == nullptr) {
    ::_exit(126);
  }
  ::dup2(STDOUT_FILENO, STDERR_FILENO);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

void Wait(pid_t child) {
  int state = 0;
  ::waitpid(child, &state, 0);
  if (state != 0) Die(StrCat("initdb ended with ", state));
}

}  // namespace

PostgresCluster::PostgresCluster() : programs_(Programs()) {
  const std::string data = folder() + "/data";
  if (::mkdir(data.c_str(), 0700) != 0) Die(data + " cannot be made");
  if (::geteuid() == 0 && (::chown(folder().c_str(), kNobody, kNobody) != 0 ||
                           ::chown(data.c_str(), kNobody, kNobody) != 0)) {
    Die("its folder cannot be given to nobody");
  }
  Wait(Spawn({programs_ + "/initdb", "-D", data, "-U", "reprise", "-A", "trust",
              "-E", "UTF8", "--no-locale", "--no-sync"},
             folder()));
  Start();
}

PostgresCluster::~PostgresCluster() { Kill(); }

PostgresCluster& PostgresCluster::Shared() {
  static PostgresCluster cluster;
  return cluster;
}

void PostgresCluster::Start() {
  // Committed is what the process has written: no test cuts the power.
  pid_ = Spawn({programs_ + "/postgres", "-D", folder() + "/data", "-k",
                folder(), "-c", "listen_addresses=", "-c", "fsync=off", "-c",
                "shared_buffers=16MB", "-c", "max_connections=100"},
               folder());
  const std::string probe =
      StrCat(programs_, "/pg_isready -q -h ", folder(), " -U reprise");
  for (int i = 0; i < 600; ++i) {
    if (std::system(probe.c_str()) == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  Die(StrCat("it does not answer; see ", folder(), "/log"));
}

void PostgresCluster::Kill() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGQUIT);
  ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

std::string PostgresCluster::NewDatabase() {
  const std::string name = StrCat("test", ++databases_);
  const std::string admin =
      StrCat("postgresql:///postgres?host=", folder(), "&user=reprise");
  Run(admin, StrCat("CREATE DATABASE ", name));
  return StrCat("postgresql:///", name, "?host=", folder(), "&user=reprise");
}

std::string PostgresCluster::UrlIn(const std::string& other,
                                   const std::string& url) const {
  std::string changed = url;
  return changed.replace(changed.find(folder()), folder().size(), other);
}

std::string PostgresCluster::Run(const std::string& url,
                                 const std::string& sql) const {
  const std::string command =
      StrCat(programs_, "/psql -X -A -t -q -v ON_ERROR_STOP=1 '", url,
             "' -c \"", sql, "\" 2>&1");
  std::FILE* const pipe = ::popen(command.c_str(), "re");
  std::string answer;
  char part[4096];
  for (size_t n = 0; (n = std::fread(part, 1, sizeof(part), pipe)) > 0;) {
    answer.append(part, n);
  }
  if (::pclose(pipe) != 0) Die(StrCat(sql, ": ", answer));
  while (!answer.empty() && answer.back() == '\n') answer.pop_back();
  return answer;
}

}  // namespace reprise::server
