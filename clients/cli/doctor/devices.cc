// SPDX-License-Identifier: Apache-2.0
//
// GPUs as NVIDIA's management library reports them, and what prevents CUPTI
// from tracing on them. Uses our own declarations, so no header of the driver
// is needed.
#include <dlfcn.h>
#include <unistd.h>

#include <bit>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/str_cat.h"
#include "clients/cli/doctor/doctor.h"

namespace reprise::cli {
namespace {

constexpr unsigned kVirtualGpu = 2;  // NVML_GPU_VIRTUALIZATION_MODE_VGPU

constexpr auto kExpandable =
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True leaves less of a GPU in "
    "fragments; not for jobs that hand CUDA tensors to other processes";

struct ComputeState {  // nvmlConfComputeSystemState_t
  unsigned environment, feature, tools;
};
class Nvml {
 public:
  // Every query is optional: older libraries lack some.
  bool Open() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    using Init = int (*)();
    const auto init = Find<Init>("nvmlInit_v2");
    return init != nullptr && init() == 0;
  }

  unsigned Count() const {
    unsigned count = 0;
    const auto ask = Find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
    return ask != nullptr && ask(&count) == 0 ? count : 0;
  }

  void* Device(unsigned index) const {
    void* device = nullptr;
    const auto ask =
        Find<int (*)(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
    return ask != nullptr && ask(index, &device) == 0 ? device : nullptr;
  }

  std::string Name(void* device) const {
    char name[96] = "a GPU";
    if (const auto ask =
            Find<int (*)(void*, char*, unsigned)>("nvmlDeviceGetName")) {
      ask(device, name, sizeof name);
    }
    return name;
  }

  bool Partitioned(void* device) const {
    unsigned current = 0;
    unsigned pending = 0;
    const auto ask =
        Find<int (*)(void*, unsigned*, unsigned*)>("nvmlDeviceGetMigMode");
    return ask != nullptr && ask(device, &current, &pending) == 0 &&
           current == 1;
  }

  bool Virtual(void* device) const {
    unsigned mode = 0;
    const auto ask =
        Find<int (*)(void*, unsigned*)>("nvmlDeviceGetVirtualizationMode");
    return ask != nullptr && ask(device, &mode) == 0 && mode == kVirtualGpu;
  }

  // Returns the NUMA node that the device is near; -1: not known, or there is no
  // other.
  int Node(void* device) const {
    unsigned long near = 0;
    constexpr unsigned kNodeScope = 0;
    const auto ask = Find<int (*)(void*, unsigned, unsigned long*, unsigned)>(
        "nvmlDeviceGetMemoryAffinity");
    if (ask == nullptr || ask(device, 1, &near, kNodeScope) != 0 ||
        !std::has_single_bit(near)) {
      return -1;
    }
    const int node = std::countr_zero(near);
    std::ifstream nodes("/sys/devices/system/node/online");
    std::string online;
    nodes >> online;
    return node == 0 && online == "0" ? -1 : node;
  }

  bool Confidential() const {
    ComputeState state{};
    const auto ask =
        Find<int (*)(ComputeState*)>("nvmlSystemGetConfComputeState");
    return ask != nullptr && ask(&state) == 0 && state.feature == 1;
  }

 private:
  template <typename Function>
  Function Find(const char* name) const {
    return library_ == nullptr
               ? nullptr
               : reinterpret_cast<Function>(dlsym(library_, name));
  }

  void* library_ = nullptr;
};

// Returns one line per fact: "confidential", "gpu MIG VIRTUAL NODE NAME".
std::string AskNvml() {
  Nvml nvml;
  if (!nvml.Open()) return "none\n";
  std::string said = nvml.Confidential() ? "confidential\n" : "";
  for (unsigned index = 0; index < nvml.Count(); ++index) {
    void* device = nvml.Device(index);
    if (device == nullptr) continue;
    said += StrCat("gpu ", nvml.Partitioned(device) ? 1 : 0, " ",
                   nvml.Virtual(device) ? 1 : 0, " ", nvml.Node(device), " ",
                   nvml.Name(device), "\n");
  }
  return said;
}

Check CheckOf(const std::string& name, bool partitioned, bool virtual_gpu,
              int node, bool confidential) {
  Check check{Health::kOk, "gpu", name, ""};
  if (node >= 0) check.found += StrCat(", near NUMA node ", node);
  if (confidential) {
    check.found +=
        ", confidential computing is on: CUPTI may refuse (error 41)";
    check.advice =
        "ops are then timed by the host; for kernels, boot it in devtools mode";
  } else if (virtual_gpu) {
    check.found += ", a vGPU: CUPTI may refuse (errors 33 and 40)";
    check.advice =
        "ops are then timed by the host; for kernels, let the host enable "
        "profiling for this vGPU";
  } else if (partitioned) {
    check.found +=
        ", MIG is on: instances of their own are traced, shared ones may be "
        "refused (error 43)";
    check.advice = "ops are then timed by the host";
  }
  if (!check.advice.empty()) {
    check.health = Health::kWarning;
  } else if (node >= 0) {
    check.advice = StrCat(
        "plans that use host memory copy fastest under numactl "
        "--cpunodebind=",
        node, " --membind=", node);
  }
  return check;
}

// Checks how torch's allocator will divide a GPU, from this command's
// environment.
Check CheckAllocator() {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') continue;
    const bool expandable =
        std::string(text).find("expandable_segments:True") != std::string::npos;
    return {Health::kOk, "allocator", StrCat(name, " is ", text),
            expandable ? "" : kExpandable};
  }
  return {Health::kOk, "allocator", "PYTORCH_CUDA_ALLOC_CONF is not set",
          kExpandable};
}

}  // namespace

std::vector<Check> CheckDevices() {
  std::vector<Check> checks;
  const std::string said = InChild(AskNvml);
  if (said.empty()) {
    checks.push_back(
        {Health::kWarning, "gpu",
         "libnvidia-ml.so.1 is there and gives no answer: GPUs are not known",
         "see nvidia-smi"});
    return checks;
  }
  bool confidential = false;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "confidential") confidential = true;
    if (word == "gpu") {
      bool partitioned = false;
      bool virtual_gpu = false;
      std::string name;
      int node = -1;
      words >> partitioned >> virtual_gpu >> node >> std::ws;
      std::getline(words, name);
      checks.push_back(
          CheckOf(name, partitioned, virtual_gpu, node, confidential));
    }
  }
  const bool driver = DriverVersion() > 0;
  const bool named = !checks.empty();
  if (!named && driver) {
    checks.push_back({Health::kWarning, "gpu",
                      "the driver answers, but libnvidia-ml lists no GPU: "
                      "their models are not known",
                      "see nvidia-smi"});
  } else if (!named) {
    checks.push_back({Health::kOk, "gpu", "no NVIDIA GPU is seen here", ""});
  }
  if (named || driver) checks.push_back(CheckAllocator());
  return checks;
}

}  // namespace reprise::cli
