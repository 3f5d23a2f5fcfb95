// SPDX-License-Identifier: Apache-2.0
//
// Checks the machine: driver, namespaces, what the ring needs, and the agent.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/fd.h"
#include "base/str_cat.h"
#include "clients/cli/core/files.h"
#include "clients/cli/doctor/doctor.h"
#include "clients/cli/server/runtime_paths.h"
#include "profiler/include/reprise_agent.h"

namespace reprise::cli {
namespace {

std::string Slurp(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) {
    text.pop_back();
  }
  return text;
}

// "12080" -> "12.8"
std::string CudaVersion(int number) {
  return StrCat(number / 1000, ".", number % 1000 / 10);
}

// Returns "VERSION ERROR DEVICES" of the driver, "none" or "broken"; asks it
// once.
const std::string& AskDriver() {
  static const std::string said = InChild([]() -> std::string {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY);
    if (library == nullptr) return "none";
    int number = 0, devices = 0;
    const auto version = Call(library, "cuDriverGetVersion", &number);
    const auto error = Call(library, "cuInit", 0u);
    if (!version || !error ||
        (error == 0 && !Call(library, "cuDeviceGetCount", &devices))) {
      return "broken";
    }
    return StrCat(number, " ", *error, " ", devices);
  });
  return said;
}

Check Driver() {
  const std::string& text = AskDriver();
  if (text == "none") {
    return {Health::kOk, "driver",
            "no NVIDIA driver (libcuda.so.1) here: allocations and the host's "
            "clock are recorded, kernels are not",
            ""};
  }
  int number = 0;
  int error = 0;
  int devices = 0;
  std::istringstream(text) >> number >> error >> devices;
  if (text.empty() || text == "broken" || number == 0) {
    return {Health::kProblem, "driver",
            "libcuda.so.1 is there and cannot be used",
            "reinstall the driver; in a container, start it with the GPU "
            "(--gpus all)"};
  }
  if (error != 0) {
    return {Health::kProblem, "driver",
            StrCat("driver for CUDA ", CudaVersion(number),
                   ", but it does not start (error ", error, ")"),
            "see nvidia-smi; in a container, start it with the GPU (--gpus "
            "all)"};
  }
  return {Health::kOk, "driver",
          StrCat("for CUDA up to ", CudaVersion(number), ", ", devices,
                 devices == 1 ? " device" : " devices"),
          ""};
}

// Returns the nesting depth of our pid namespace.
int NamespaceDepth() {
  std::istringstream lines(Slurp("/proc/self/status"));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("NSpid:", 0) != 0) continue;
    std::istringstream words(line.substr(6));
    int count = 0;
    for (std::string word; words >> word;) ++count;
    return count;
  }
  return 1;
}

Check Namespaces() {
  std::string container;
  if (Exists("/.dockerenv")) container = "docker";
  if (Exists("/run/.containerenv")) container = "podman";
  if (!Environment("KUBERNETES_SERVICE_HOST").empty()) container = "kubernetes";
  if (!Environment("APPTAINER_CONTAINER").empty()) container = "apptainer";
  std::istringstream map(Slurp("/proc/self/uid_map"));
  int64_t inside = 0;
  int64_t outside = 0;
  int64_t length = 0;
  map >> inside >> outside >> length;
  const bool own_users = length != 0 && length != 4294967295;
  const int depth = NamespaceDepth();
  std::string found = container.empty()
                          ? std::string("no container")
                          : StrCat("in a container (", container, ")");
  found += depth > 1 ? StrCat(", ", depth, " process namespaces deep")
                     : std::string(", no process namespace of its own seen");
  if (own_users) {
    found += StrCat(", a user namespace of its own (uid ", getuid(),
                    " here is ", outside + getuid() - inside, " outside)");
  }
  const bool apart = !container.empty() || own_users;
  return {Health::kOk, "namespaces", found,
          apart ? "a daemon outside must share the socket's folder with the "
                  "job and see the same uid; `reprise run` in here needs "
                  "neither"
                : ""};
}

// Checks what libreprise_agent.so needs from the kernel.
Check Ring() {
  const Fd fd(memfd_create("reprise-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return {Health::kProblem, "ring",
            StrCat("memfd_create: ", std::strerror(errno)),
            "the agent needs memfd (Linux 3.17, and no seccomp rule against "
            "it)"};
  }
  std::string wrong;
  constexpr off_t kBytes = 1 << 20;
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (ftruncate(fd.get(), kBytes) != 0) {
    wrong = StrCat("ftruncate of a memfd: ", std::strerror(errno));
  } else if (fcntl(fd.get(), F_ADD_SEALS, seals) != 0 ||
             fcntl(fd.get(), F_GET_SEALS) != seals) {
    wrong = StrCat("sealing a memfd: ", std::strerror(errno));
  } else {
    void* at =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) {
      wrong = StrCat("mapping a memfd: ", std::strerror(errno));
    } else {
      if (madvise(at, kBytes, MADV_DONTFORK) != 0) {
        wrong = StrCat("MADV_DONTFORK: ", std::strerror(errno));
      }
      munmap(at, kBytes);
    }
  }
  if (!wrong.empty()) {
    return {Health::kProblem, "ring", wrong,
            "the agent cannot make its ring here; is a seccomp profile in the "
            "way?"};
  }
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool wipes =
      page != MAP_FAILED && madvise(page, 4096, MADV_WIPEONFORK) == 0;
  if (page != MAP_FAILED) munmap(page, 4096);
  if (!wipes) {
    return {Health::kWarning, "ring",
            "memfd and seals work, MADV_WIPEONFORK does not",
            "a Linux of 4.14 or newer covers children of a raw clone too"};
  }
  return {Health::kOk, "ring",
          "memfd, seals and fork protection work; 16 MiB per job by default",
          ""};
}

// Returns what is left of the memory limit of the control group; -1: there is
// none.
int64_t LeftInGroup() {
  std::string group = Slurp("/proc/self/cgroup");
  const size_t unified = group.find("0::");
  if (unified == std::string::npos) return -1;
  group = Trimmed(group.substr(unified + 3));
  group = group.substr(0, group.find('\n'));
  const std::string folder = "/sys/fs/cgroup" + group;
  const std::string limit = Trimmed(Slurp((folder + "/memory.max").c_str()));
  const std::string used = Trimmed(Slurp((folder + "/memory.current").c_str()));
  if (limit.empty() || limit == "max" || used.empty()) return -1;
  return std::max<int64_t>(0, std::strtoll(limit.c_str(), nullptr, 10) -
                                  std::strtoll(used.c_str(), nullptr, 10));
}

// Returns the memory that the kernel calls available.
int64_t Available() {
  std::istringstream lines(Slurp("/proc/meminfo"));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("MemAvailable:", 0) != 0) continue;
    return std::strtoll(line.c_str() + 13, nullptr, 10) << 10;
  }
  return 0;
}

// Checks host memory: what agent and daemon need, and what plans may use.
Check HostMemory() {
  const int64_t group = LeftInGroup(), machine = Available();
  const bool is_limited = group >= 0 && group < machine;
  const int64_t left = is_limited ? group : machine;
  rlimit locked{};
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  Check check{Health::kOk, "memory",
              StrCat(FormatBytes(left), " free",
                     is_limited ? " in this control group" : "",
                     "; a process may lock ",
                     locked.rlim_cur == RLIM_INFINITY
                         ? std::string("all of it")
                         : FormatBytes(static_cast<int64_t>(locked.rlim_cur)),
                     " (ulimit -l)"),
              ""};
  constexpr int64_t kNeeded = int64_t{64} << 20;
  if (left < kNeeded) {
    check.health = Health::kWarning;
    check.advice = "agent and daemon take up to 64 MiB: raise the limit";
  }
  return check;
}

}  // namespace

Check CheckAgent(const PythonFacts& python) {
  std::string path = AgentLibrary();
  if (path.empty()) path = python.agent;
  if (path.empty()) {
    return {Health::kWarning, "agent library",
            "libreprise_agent.so was not found",
            "name it with REPRISE_AGENT, or install the package reprise"};
  }
  const std::string abi = InChild([&]() -> std::string {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto version = Call(library, "reprise_abi_version");
    return version ? std::to_string(*version) : "";
  });
  if (abi.empty()) {
    return {Health::kProblem, "agent library",
            StrCat(path, ": cannot be loaded as the agent"),
            "name another one with REPRISE_AGENT, or install the package "
            "reprise"};
  }
  if (abi != std::to_string(REPRISE_ABI)) {
    return {Health::kWarning, "agent library",
            StrCat(path, " has ABI ", abi,
                   ", this command " REPRISE_VERSION " has ABI ", REPRISE_ABI),
            "use agent, daemon and command of one release"};
  }
  return {Health::kOk, "agent library", StrCat("ABI ", abi, ", ", path), ""};
}

int DriverVersion() {
  return static_cast<int>(std::strtol(AskDriver().c_str(), nullptr, 10));
}

std::vector<Check> CheckHost() {
  return {Driver(), Namespaces(), Ring(), HostMemory()};
}

}  // namespace reprise::cli
