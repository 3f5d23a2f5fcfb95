// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/core/local_time.h"

#include <ctime>

namespace reprise::cli {

std::string LocalTime(int64_t unix_ns) {
  const std::time_t seconds = unix_ns / 1'000'000'000;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

}  // namespace reprise::cli
