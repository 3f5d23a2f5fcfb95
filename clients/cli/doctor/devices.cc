// SPDX-License-Identifier: Apache-2.0
//
// GPUs as NVIDIA's management library reports them, and what prevents CUPTI
// from tracing on them. Uses our own declarations, so no header of the driver
// is needed.
#include <bit>
#include <fstream>
#include <sstream>

#include "base/str_cat.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/server/runtime_paths.h"

namespace reprise::cli {
namespace {

constexpr unsigned kVirtualGpu = 2;  // NVML_GPU_VIRTUALIZATION_MODE_VGPU

constexpr auto kExpandable =
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True leaves less of a GPU in "
    "fragments; not for jobs that hand CUDA tensors to other processes";

struct ComputeState {  // nvmlConfComputeSystemState_t
  unsigned environment, feature, tools;
};

// Returns the NUMA node that the device is near; -1: not known, or there is no
// other.
int NodeOf(void* nvml, void* device) {
  unsigned long near = 0;
  constexpr unsigned kSize = 1, kNodeScope = 0;
  if (Call(nvml, "nvmlDeviceGetMemoryAffinity", device, kSize, &near,
           kNodeScope) != 0 ||
      !std::has_single_bit(near)) {
    return -1;
  }
  const int node = std::countr_zero(near);
  std::ifstream nodes("/sys/devices/system/node/online");
  std::string online;
  nodes >> online;
  return node == 0 && online == "0" ? -1 : node;
}

// Returns one line per fact: "confidential", "gpu MIG VIRTUAL NODE NAME". Every
// query is optional: older libraries lack some.
std::string AskNvml() {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (Call(nvml, "nvmlInit_v2") != 0) return "none\n";
  ComputeState state{};
  std::string said;
  if (Call(nvml, "nvmlSystemGetConfComputeState", &state) == 0 &&
      state.feature == 1) {
    said = "confidential\n";
  }
  unsigned count = 0;
  if (Call(nvml, "nvmlDeviceGetCount_v2", &count) != 0) return said;
  for (unsigned index = 0; index < count; ++index) {
    void* device = nullptr;
    if (Call(nvml, "nvmlDeviceGetHandleByIndex_v2", index, &device) != 0 ||
        device == nullptr) {
      continue;
    }
    unsigned current = 0, pending = 0, mode = 0;
    const bool mig =
        Call(nvml, "nvmlDeviceGetMigMode", device, &current, &pending) == 0 &&
        current == 1;
    const bool is_virtual =
        Call(nvml, "nvmlDeviceGetVirtualizationMode", device, &mode) == 0 &&
        mode == kVirtualGpu;
    char name[96] = "a GPU";
    Call(nvml, "nvmlDeviceGetName", device, name, unsigned{sizeof name});
    said += StrCat("gpu ", mig ? 1 : 0, " ", is_virtual ? 1 : 0, " ",
                   NodeOf(nvml, device), " ", name, "\n");
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
    const std::string text = Environment(name);
    if (text.empty()) continue;
    const bool expandable =
        text.find("expandable_segments:True") != std::string::npos;
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
