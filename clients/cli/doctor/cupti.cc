// SPDX-License-Identifier: Apache-2.0
//
// Checks libcupti: where it is, its version, and what has the injection slot.
#include <link.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "base/str_cat.h"
#include "clients/cli/core/files.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/server/runtime_paths.h"

namespace reprise::cli {
namespace {

// API versions of CUPTI, as in profiler/cupti_abi.h.
constexpr int kOldestApi = 18;

// Returns the paths that the agent searches, in its order.
std::vector<std::string> Places(const PythonFacts& python) {
  std::vector<std::string> places;
  if (std::string named = Environment("REPRISE_CUPTI_PATH"); !named.empty()) {
    places.push_back(std::move(named));
  }
  for (const char* name :
       {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8",
        "/usr/local/cuda/lib64/libcupti.so",
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"}) {
    places.push_back(name);
  }
  places.insert(places.end(), python.libcupti.begin(), python.libcupti.end());
  return places;
}

// Loads a library in a child process; returns "API MISSING FILE", where MISSING
// is a function that it lacks, or "-".
std::string VersionOf(const std::string& place) {
  return InChild([&]() -> std::string {
    void* library = dlopen(place.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return "none";
    uint32_t version = 0;
    if (Call(library, "cuptiGetVersion", &version) != 0) return "broken";
    link_map* map = nullptr;
    std::string path = place;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) {
      path = map->l_name;
    }
    std::string missing;
    for (const char* symbol :
         {"cuptiSubscribe", "cuptiActivityEnable", "cuptiActivityFlushAll",
          "cuptiActivityGetNextRecord", "cuptiActivityRegisterCallbacks"}) {
      if (dlsym(library, symbol) == nullptr) missing = symbol;
    }
    return StrCat(version, " ", missing.empty() ? "-" : missing, " ", path);
  });
}

std::string Release(int api) {
  if (api >= 130000) return StrCat("CUDA 13.", api % 10000 / 100);
  if (api >= 20) return "CUDA 12";
  return api >= kOldestApi ? "CUDA 11.8" : "older than CUDA 11.8";
}

// Returns the CUDA version that an API version of CUPTI belongs to; 11.8 and
// 12.1 have the same API version.
int MajorOf(int api) {
  if (api >= 130000) return api / 10000;
  return api > 18 ? 12 : 11;
}

// Memory that a window uses on a device: four buffers of 3.2 MB
// (profiler/README.md).
constexpr auto kDeviceMemory =
    "; a window takes at most 12.8 MB of a device for it";

// Only an actual attempt shows whether the driver allows a job to trace.
constexpr auto kNotTried =
    "; loads here; whether it may trace was not checked: the first window of a "
    "job will tell";

std::vector<Check> Libraries(const PythonFacts& python) {
  const int driver = DriverVersion();
  std::set<std::string> seen;
  std::vector<Check> found;
  for (const std::string& place : Places(python)) {
    const std::string text = VersionOf(place);
    if (text == "none") {
      if (place == Environment("REPRISE_CUPTI_PATH")) {
        found.push_back({Health::kProblem, "libcupti",
                         StrCat("REPRISE_CUPTI_PATH is ", place,
                                ", which cannot be loaded"),
                         "name an existing libcupti.so, or unset it"});
      }
      continue;
    }
    int api = 0;
    std::string missing;
    std::string path;
    std::istringstream(text) >> api >> missing >> path;
    if (text.empty() && driver == 0) {
      // That of CUDA 13.2 calls itself without end where there is no driver.
      // The agent loads none there.
      if (seen.insert(place).second) {
        found.push_back({Health::kOk, "libcupti",
                         StrCat(place,
                                ": tells its version only where there is an "
                                "NVIDIA driver, so it was not checked"),
                         ""});
      }
      continue;
    }
    if (text.empty() || text == "broken" || api == 0) {
      found.push_back({Health::kProblem, "libcupti",
                       StrCat(place, ": is no working libcupti"),
                       "reinstall the CUDA toolkit or torch"});
      continue;
    }
    std::error_code error;
    const std::string real = std::filesystem::canonical(path, error).string();
    if (!seen.insert(error ? path : real).second) continue;
    Check check{Health::kOk, "libcupti",
                StrCat("API ", api, " (", Release(api), "), ", path), ""};
    if (api < kOldestApi) {
      check.health = Health::kProblem;
      check.advice = "kernels need CUPTI of CUDA 11.8 or newer";
    } else if (missing != "-") {
      check.health = Health::kProblem;
      check.found += ", without " + missing;
      check.advice = "reinstall it: a function that tracing needs is missing";
    } else if (driver > 0 && MajorOf(api) > driver / 1000) {
      check.health = Health::kWarning;
      check.found += StrCat(", newer than the driver, which is for CUDA ",
                            driver / 1000, ".", driver % 1000 / 10);
      check.advice = StrCat(
          "no kernels are recorded with it, ops are timed by the host: update "
          "the driver, or install a torch for CUDA ",
          driver / 1000,
          " (a job of torch uses the libcupti that torch has loaded, whatever "
          "REPRISE_CUPTI_PATH names)");
    } else {
      if (driver > 0) check.found += kDeviceMemory;
      check.found += kNotTried;
    }
    found.push_back(std::move(check));
  }
  if (found.empty()) {
    found.push_back({Health::kOk, "libcupti",
                     "none found: kernels are not recorded, allocations and "
                     "ops are",
                     Exists("/proc/driver/nvidia")
                         ? "install CUPTI with the CUDA toolkit, or set "
                           "REPRISE_CUPTI_PATH"
                         : ""});
    if (Exists("/proc/driver/nvidia")) found[0].health = Health::kWarning;
  }
  if (seen.size() > 1) {
    found.push_back({Health::kWarning, "libcupti",
                     StrCat(seen.size(),
                            " copies: a job of torch uses the one that torch "
                            "has loaded, another may load any of them"),
                     "for a job without torch, name one in "
                     "REPRISE_CUPTI_PATH"});
  }
  return found;
}

Check Injection() {
  const std::string path = Environment("CUDA_INJECTION64_PATH");
  if (path.empty()) {
    return {Health::kOk, "injection", "CUDA_INJECTION64_PATH is free", ""};
  }
  if (path.find("libreprise_agent") != std::string::npos) {
    return Exists(path)
               ? Check{Health::kOk, "injection",
                       StrCat("CUDA_INJECTION64_PATH is ours: ", path), ""}
               : Check{Health::kProblem, "injection",
                       StrCat("CUDA_INJECTION64_PATH is ", path,
                              ", which is not there: CUDA programs fail to "
                              "start"),
                       "unset it, or install the agent there"};
  }
  return {Health::kWarning, "injection",
          StrCat("CUDA_INJECTION64_PATH is held by ", path),
          "while that tool runs it may have CUPTI; unset it, or use `reprise "
          "import` on what it records"};
}

}  // namespace

std::vector<Check> CheckCupti(const PythonFacts& python) {
  std::vector<Check> checks = Libraries(python);
  checks.push_back(Injection());
  return checks;
}

}  // namespace reprise::cli
