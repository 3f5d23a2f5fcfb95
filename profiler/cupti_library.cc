#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "profiler/device_tracer.h"

namespace reprise::profiler {
namespace {

constexpr const char *kLoadedNames[] = {"libcupti.so.13", "libcupti.so.12",
                                        "libcupti.so.11.8", "libcupti.so"};
constexpr const char *kPlaces[] = {
    "libcupti.so.13",
    "libcupti.so.12",
    "libcupti.so.11.8",
    "/usr/local/cuda/lib64/libcupti.so",
    "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
};

// In the order of the members of cupti::Functions.
constexpr const char *kSymbols[] = {
    "GetVersion",
    "Subscribe",
    "Unsubscribe",
    "ActivityRegisterCallbacks",
    "ActivityEnable",
    "ActivityDisable",
    "ActivityFlushAll",
    "ActivityGetNextRecord",
    "ActivityGetNumDroppedRecords",
    "ActivityGetAttribute",
    "ActivitySetAttribute",
    "ActivityPushExternalCorrelationId",
    "ActivityPopExternalCorrelationId",
    "ActivityRegisterTimestampCallback",
    "ActivityEnableRuntimeApi",
    "ActivityEnableDriverApi",
    "GetThreadIdType",
    "SetThreadIdType",
    "Subscribe_v2",
};
constexpr size_t kSymbolCount = sizeof kSymbols / sizeof *kSymbols;
static_assert(sizeof(cupti::Functions) == kSymbolCount * sizeof(void *),
              "one symbol per function");

// Returns a handle of libcupti, or null. It is never closed: records may arrive
// as long as the process lives.
void *Open(const char *path, bool only_loaded) {
  for (const char *name : kLoadedNames)
    if (void *library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return library;
  const bool named = path != nullptr && *path != 0;
  if (only_loaded)
    return named ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  if (named) return dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  for (const char *place : kPlaces)
    if (void *library = dlopen(place, RTLD_LAZY | RTLD_LOCAL)) return library;
  return nullptr;
}

}  // namespace

bool LoadCupti(const char *path, bool only_loaded, cupti::Functions *functions,
               uint32_t *version, char *why, size_t why_bytes) {
  void *library = Open(path, only_loaded);
  if (library == nullptr) {
    const bool named = path != nullptr && *path != 0;
    snprintf(why, why_bytes, "%s%s: kernels are not traced",
             named ? path : "libcupti.so",
             named ? " cannot be loaded" : " not found");
    return false;
  }
  cupti::Functions found = {};
  for (size_t i = 0; i < kSymbolCount; ++i) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "cupti%s", kSymbols[i]);
    void *address = dlsym(library, symbol);
    if (address == nullptr && i < cupti::kNeededFunctions) {
      snprintf(why, why_bytes, "libcupti has no %s: kernels are not traced",
               symbol);
      return false;
    }
    memcpy(reinterpret_cast<uint8_t *>(&found) + i * sizeof address, &address,
           sizeof address);
  }
  *version = 0;
  found.GetVersion(version);
  if (*version < cupti::kOldestApi) {
    snprintf(why, why_bytes,
             "libcupti has API version %u, older than CUDA 11.8's %u: kernels "
             "are not traced",
             *version, cupti::kOldestApi);
    return false;
  }
  *functions = found;
  return true;
}

const char *ExplainCupti(int result) {
  switch (result) {
    case cupti::kNotCompatible:
      return "another CUPTI interface is in use in this process";
    case cupti::kNotInitialized:
      return "no device, or CUPTI is newer than the driver";
    case cupti::kVirtualizedNotSupported:
    case cupti::kVirtualizedInsufficientPrivileges:
      return "the virtual GPU's host does not allow tracing";
    case cupti::kInsufficientPrivileges:
      return "tracing is restricted to administrators here";
    case cupti::kMultipleSubscribers:
      return "another tool holds it";
    case cupti::kConfidentialComputing:
      return "confidential computing forbids it";
    case cupti::kMultiInstanceGpu:
      return "this MIG instance cannot be traced";
    case cupti::kUnknown:
      return "it finds no usable driver";
    default:
      return "CUPTI refuses";
  }
}

}  // namespace reprise::profiler
