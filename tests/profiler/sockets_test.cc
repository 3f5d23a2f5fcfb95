// The socket at which agent, daemon and command of one machine meet, chosen by
// environment.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "profiler/include/reprise_sockets.h"

namespace {

using nlohmann::json;

std::string Filled(std::string text, const std::string& home) {
  const std::pair<std::string, std::string> places[] = {
      {"{home}", home}, {"{uid}", std::to_string(geteuid())}};
  for (const auto& [place, value] : places) {
    for (size_t at; (at = text.find(place)) != std::string::npos;) {
      text.replace(at, place.size(), value);
    }
  }
  return text;
}

class SocketsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/rpXXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    home_ = folder;
    ASSERT_EQ(mkdir((home_ + "/run").c_str(), 0700), 0);
    // A folder of another user; only root can create it.
    const std::string theirs = home_ + "/theirs";
    ASSERT_EQ(mkdir(theirs.c_str(), 0500), 0);
    if (geteuid() == 0) {
      ASSERT_EQ(chown(theirs.c_str(), 12345, 12345), 0);
    }
    std::ofstream(home_ + "/file").put('x');
    for (const char* name : {"REPRISE_SOCKET", "XDG_RUNTIME_DIR", "TMPDIR"}) {
      unsetenv(name);
    }
  }
  void TearDown() override { std::filesystem::remove_all(home_); }

  std::string home_;
  RepriseSockets sockets_;
};

TEST_F(SocketsTest, ADaemonOfThisUserListensAsTheTableSays) {
  std::ifstream file(REPRISE_SOURCE_DIR "/tests/fixtures/socket_paths.json");
  const json rows = json::parse(file)["rows"];
  ASSERT_GE(rows.size(), 6u);
  for (const json& row : rows) {
    SCOPED_TRACE(row["name"]);
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("TMPDIR");
    for (const auto& [name, value] : row["env"].items()) {
      setenv(name.c_str(), Filled(value, home_).c_str(), 1);
    }

    ASSERT_EQ(RepriseFindSockets(nullptr, &sockets_), nullptr);

    ASSERT_GE(sockets_.own, 0);
    EXPECT_EQ(sockets_.path[sockets_.own], Filled(row["own"], home_));
  }
}

TEST_F(SocketsTest, AnAgentLooksAtTheServiceFirstAndAtEveryPlaceOfTheUser) {
  setenv("XDG_RUNTIME_DIR", (home_ + "/run").c_str(), 1);
  setenv("TMPDIR", home_.c_str(), 1);

  ASSERT_EQ(RepriseFindSockets(nullptr, &sockets_), nullptr);

  ASSERT_EQ(sockets_.count, 3);
  EXPECT_STREQ(sockets_.path[0], "/run/reprise/agent.sock");
  EXPECT_EQ(sockets_.path[1], home_ + "/run/reprise/agent.sock");
  EXPECT_EQ(sockets_.path[2], Filled("{home}/reprise-{uid}/agent.sock", home_));
}

TEST_F(SocketsTest, ANameLeavesNoOtherPlace) {
  setenv("REPRISE_SOCKET", "/a/named.sock", 1);

  ASSERT_EQ(RepriseFindSockets(nullptr, &sockets_), nullptr);
  ASSERT_EQ(sockets_.count, 1);
  EXPECT_STREQ(sockets_.path[0], "/a/named.sock");
  EXPECT_EQ(sockets_.own, 0);

  ASSERT_EQ(RepriseFindSockets("/b/another.sock", &sockets_), nullptr);
  ASSERT_EQ(sockets_.count, 1);
  EXPECT_STREQ(sockets_.path[0], "/b/another.sock");
}

TEST_F(SocketsTest, APathThatIsTooLongForASocketIsRefusedOrPassedOver) {
  const std::string name(kRepriseSocketBytes, 'x');
  EXPECT_STREQ(RepriseFindSockets(name.c_str(), &sockets_),
               "socket_path: must be at most 107 bytes");
  EXPECT_EQ(sockets_.own, -1);

  setenv("XDG_RUNTIME_DIR", ("/" + name).c_str(), 1);
  setenv("TMPDIR", home_.c_str(), 1);
  ASSERT_EQ(RepriseFindSockets(nullptr, &sockets_), nullptr);
  ASSERT_EQ(sockets_.count, 2);
  EXPECT_EQ(sockets_.own, 1);
}

}  // namespace
