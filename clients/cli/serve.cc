// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/serve.h"

#include <string>

#include "server/daemon/daemon.h"

namespace reprise::cli {

int Serve(const std::vector<std::string>& flags) {
  std::string program = "reprise serve";
  std::vector<std::string> words = flags;
  std::vector<char*> argv = {program.data()};
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return server::RunServer(static_cast<int>(argv.size()) - 1, argv.data());
}

}  // namespace reprise::cli
