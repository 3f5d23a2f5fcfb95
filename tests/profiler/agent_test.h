// A fixture with a temporary folder, a socket path in it and an agent that is
// stopped when the test ends. The user's environment has no effect.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "profiler/include/reprise_agent.h"
#include "tests/profiler/collector.h"

namespace reprise::profiler::testing {

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() {
    char folder[] = "/tmp/reprise-test-XXXXXX";
    folder_ = mkdtemp(folder);
    socket_ = folder_ + "/agent.sock";
    for (const char* name :
         {"REPRISE_SINK", "REPRISE_RUN_ID", "XDG_RUNTIME_DIR", "RANK",
          "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_ID", "POD_UID"})
      unsetenv(name);
    setenv("REPRISE_SOCKET", socket_.c_str(), 1);
  }
  ~AgentTest() override {
    reprise_stop();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  // Starts the agent, again if a collector exists but did not answer in time:
  // on an overloaded machine its answer can take longer than the second that
  // the agent waits.
  static reprise_status Start(uint32_t slots = 4096) {
    reprise_config config = {};
    config.struct_size = sizeof config;
    config.ring_slots = slots;
    reprise_status status = reprise_start(&config);
    for (int i = 0; i < 30 && status == REPRISE_INERT &&
                    strstr(Capabilities().why, "has not answered") != nullptr;
         ++i)
      status = reprise_start(&config);
    return status;
  }

  static reprise_caps Capabilities() {
    reprise_caps caps = {};
    caps.struct_size = sizeof caps;
    reprise_capabilities(&caps);
    return caps;
  }

  static uint32_t Intern(const std::string& text) {
    return reprise_intern(text.data(), text.size());
  }

  std::string folder_, socket_;
  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
};

}  // namespace reprise::profiler::testing
