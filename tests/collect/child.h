// SPDX-License-Identifier: Apache-2.0
//
// A child process that a test talks to in lines of text.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace reprise::server {

class Child {
 public:
  Child() = default;
  explicit Child(const std::vector<std::string>& command);
  ~Child();  // sends SIGKILL unless Wait was called
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;

  // Writes a line and reads the answer; empty if the child has ended.
  std::string Ask(const std::string& line);
  void Tell(const std::string& line);
  std::string ReadLine();

  void Signal(int signal);
  // Waits for the end; returns the exit code, or minus the signal that ended
  // it.
  int Wait();
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string buffer_;
};

}  // namespace reprise::server
