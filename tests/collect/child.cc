// SPDX-License-Identifier: Apache-2.0
#include "tests/collect/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

extern char** environ;

namespace reprise::server {

Child::Child(const std::vector<std::string>& command) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  std::vector<char*> argv;
  for (const std::string& word : command) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) !=
      0) {
    pid_ = -1;
  }
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
}

Child::~Child() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
}

Child::Child(Child&& other) noexcept { *this = std::move(other); }

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(to_, other.to_);
  std::swap(from_, other.from_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

void Child::Tell(const std::string& line) {
  const std::string text = line + "\n";
  (void)!write(to_, text.data(), text.size());
}

std::string Child::ReadLine() {
  while (true) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char bytes[256];
    const ssize_t n = read(from_, bytes, sizeof(bytes));
    if (n <= 0) return "";
    buffer_.append(bytes, static_cast<size_t>(n));
  }
}

std::string Child::Ask(const std::string& line) {
  Tell(line);
  return ReadLine();
}

void Child::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

int Child::Wait() {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, 0) != pid_) return -1;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace reprise::server
