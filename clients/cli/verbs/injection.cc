// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/verbs/injection.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "base/str_cat.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/server/runtime_paths.h"

namespace reprise::cli {
namespace {

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

}  // namespace

StatusOr<std::vector<std::pair<std::string, std::string>>> TakeInjectionSlot() {
  const char* const before = std::getenv(kSlot);
  const std::string holder = before == nullptr ? "" : before;
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

}  // namespace reprise::cli
