// SPDX-License-Identifier: Apache-2.0
#include "server/collect/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "base/str_cat.h"
#include "server/collect/memfd.h"

namespace reprise::server {

namespace {

struct ProcessStat {
  char state = 0;
  uint64_t start_ticks = 0;
};

// Returns all zeros if the process does not exist. Avoids streams: the process
// may end between open and read, and libstdc++'s buffer throws on the resulting
// error (WhatAKilledJobHadPushedIsThereOnceAndInOrder).
ProcessStat ReadStat(int64_t pid) {
  const Fd file(
      open(StrCat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(4096, '\0');
  const ssize_t n =
      file.valid() ? read(file.get(), text.data(), text.size()) : -1;
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  // The second field, the command, is in parentheses and may contain
  // parentheses and blanks.
  const size_t command_end = text.rfind(')');
  if (command_end == std::string::npos) return {};
  std::istringstream fields(text.substr(command_end + 1));
  ProcessStat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  return fields ? stat : ProcessStat{};
}

}  // namespace

uint64_t StartTicksOf(int64_t pid) {
  return pid > 0 ? ReadStat(pid).start_ticks : 0;
}

Life LifeOf(int64_t pid, uint64_t start_ticks) {
  const ProcessStat stat = ReadStat(pid);
  if (stat.state == 0 || stat.start_ticks != start_ticks) return Life::kGone;
  if (stat.state == 'X') return Life::kGone;
  return stat.state == 'Z' ? Life::kZombie : Life::kAlive;
}

std::string CurrentBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace reprise::server
