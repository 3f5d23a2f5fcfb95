// Tests of the device tracer with a fake libcupti that the agent loads as it
// would load the real one.
//
// A process loads one libcupti and keeps it, so every test runs in a child
// process: In(layout, body) forks, loads the fake of that layout and runs the
// body.
#pragma once

#include <dlfcn.h>
#include <sys/wait.h>

#include <functional>

#include "tests/profiler/agent_test.h"
#include "tests/profiler/fake_cupti/fake_cupti.h"

namespace reprise::profiler::testing {

enum class Layout { k118, k120, k130 };
constexpr Layout kAllLayouts[] = {Layout::k118, Layout::k120, Layout::k130};

inline std::string FakeCuptiPath(Layout layout) {
  return std::string(REPRISE_FAKE_CUPTI_FOLDER) + "/libfake_cupti_" +
         (layout == Layout::k118   ? "118"
          : layout == Layout::k120 ? "120"
                                   : "130") +
         ".so";
}

// Returns the path of NVIDIA's own library: REPRISE_REAL_CUPTI of the
// environment (to try several versions), or else the one that CMake `found`.
// Empty: none.
inline std::string RealCupti(const char* found) {
  const char* named = getenv("REPRISE_REAL_CUPTI");
  return named != nullptr && *named != 0 ? named : found;
}

class CuptiTest : public AgentTest {
 protected:
  // Runs `body` in a child process and reports its failures as the test's.
  static void Apart(const std::function<void()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      body();
      reprise_stop();
      fflush(nullptr);
      _exit(HasFailure() || HasFatalFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << (WIFSIGNALED(status) ? "killed by signal " : "exit ")
        << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }

  // Runs `body` in a child process that can find a driver and the fake
  // libcupti.
  void In(Layout layout, const std::function<void(FakeCupti&)>& body) {
    Apart([&] {
      LoadDriver();
      body(Load(layout));
    });
  }

  static void LoadDriver() {
    ASSERT_NE(dlopen(REPRISE_FAKE_CUDA, RTLD_NOW), nullptr) << dlerror();
  }

  static FakeCupti& Load(Layout layout) {
    const std::string path = FakeCuptiPath(layout);
    setenv("REPRISE_CUPTI_PATH", path.c_str(), 1);
    void* library = dlopen(path.c_str(), RTLD_NOW);
    if (library == nullptr) {
      ADD_FAILURE() << dlerror();
      _exit(1);
    }
    using Handle = FakeCupti* (*)();
    return *reinterpret_cast<Handle>(dlsym(library, "FakeCuptiHandle"))();
  }

  static std::string Why() { return Capabilities().why; }

  // Returns whether the names of all kernel records have arrived: names come
  // over the socket and records through the ring, so a collector may have read
  // only one of them.
  static bool KnowsItsKernels(const Session& session) {
    for (const reprise_slot& kernel : Of(session, REPRISE_RECORD_KERNEL)) {
      if (session.names.count(kernel.body.kernel.name) == 0) return false;
    }
    return true;
  }

  static std::vector<reprise_slot> Of(const Session& session, uint16_t kind) {
    std::vector<reprise_slot> found;
    for (const reprise_slot& record : session.records)
      if (record.kind == kind) found.push_back(record);
    return found;
  }

  static uint64_t Monotonic() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000u +
           static_cast<uint64_t>(t.tv_nsec);
  }
};

}  // namespace reprise::profiler::testing
