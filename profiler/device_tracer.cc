#include "profiler/device_tracer.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

namespace reprise::profiler {
namespace {

// The library this process already uses, else the one that was named: two
// copies of CUPTI in one process do not get along.
void *FindCupti(const char *cupti_path) {
  constexpr const char *kNames[] = {"libcupti.so.13", "libcupti.so.12"};
  for (const char *name : kNames)
    if (void *library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return library;
  if (cupti_path == nullptr || *cupti_path == 0) return nullptr;
  return dlopen(cupti_path, RTLD_LAZY | RTLD_LOCAL);
}

}  // namespace

void ProbeTracer(const char *cupti_path, TracerFacts *facts) {
  memset(static_cast<void *>(facts), 0, sizeof *facts);
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) {
    snprintf(facts->why, sizeof facts->why,
             "no NVIDIA driver (libcuda.so.1 not found)");
    return;
  }
  // Answers without cuInit, which is not ours to call.
  using VersionFn = int (*)(int *);
  int version = 0;
  if (auto get =
          reinterpret_cast<VersionFn>(dlsym(driver, "cuDriverGetVersion"));
      get != nullptr && get(&version) == 0)
    facts->driver_version = static_cast<uint32_t>(version);
  dlclose(driver);

  if (void *cupti = FindCupti(cupti_path)) {
    using CuptiVersionFn = int (*)(uint32_t *);
    if (auto get =
            reinterpret_cast<CuptiVersionFn>(dlsym(cupti, "cuptiGetVersion")))
      get(&facts->cupti_version);
    dlclose(cupti);
  }
  snprintf(facts->why, sizeof facts->why,
           "kernels are not traced by this version of the agent: times come "
           "from the host clock");
}

bool BeginDeviceWindow(TracerFacts *facts) { return facts->level >= 2; }

}  // namespace reprise::profiler
