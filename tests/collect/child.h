// SPDX-License-Identifier: Apache-2.0
//
// A process of the test's own, spoken to in lines.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace reprise::server {

class Child {
 public:
  Child() = default;
  explicit Child(const std::vector<std::string>& command);
  ~Child();  // SIGKILL, unless it was waited for
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;

  // Writes a line and reads the answer; empty when the child is gone.
  std::string Ask(const std::string& line);
  void Tell(const std::string& line);
  std::string ReadLine();

  void Signal(int signal);
  // The exit code, or minus the signal that ended it.
  int Wait();
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string buffer_;
};

}  // namespace reprise::server
