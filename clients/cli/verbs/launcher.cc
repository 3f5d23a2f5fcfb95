// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/launcher.h"

#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/str_cat.h"
#include "base/uuid.h"
#include "clients/cli/server/runtime_paths.h"

namespace reprise::cli {
namespace {

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
