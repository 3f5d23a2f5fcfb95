// SPDX-License-Identifier: Apache-2.0
//
// The program: its output, its exit codes, and what remains after a kill.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/server/server_harness.h"

namespace reprise::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A running reprised with its own folders.
class Reprised {
 public:
  explicit Reprised(const std::string& folder,
                    std::vector<std::string> flags = {})
      : folder_(folder), errors_(folder + "/stderr") {
    std::vector<std::string> words = {REPRISE_BINARY_DIR "/bin/reprised"};
    if (flags.empty()) flags = Flags(folder);
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      // As from a terminal, even if the tests run under nohup.
      ::signal(SIGHUP, SIG_DFL);
      const int fd =
          ::open(errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(fd, 2);
      ::dup2(fd, 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  ~Reprised() {
    if (pid_ > 0) {
      Signal(SIGKILL);
      (void)Wait();
    }
  }

  static std::vector<std::string> Flags(const std::string& folder) {
    return {"--listen",       "127.0.0.1:0",    "--data-dir",
            folder + "/data", "--agent-socket", folder + "/run/agent.sock"};
  }

  // Returns the address in server.json once this process has written it.
  std::string Address() const {
    std::string address;
    EXPECT_TRUE(Eventually([&] {
      const auto json = nlohmann::json::parse(
          ReadFile(folder_ + "/run/server.json"), nullptr, false);
      if (json.is_discarded() || json["pid"] != pid_) return false;
      address = json["listen"];
      return true;
    })) << errors();
    return address;
  }

  std::string Token() const {
    const std::string text = ReadFile(folder_ + "/data/token");
    return text.substr(0, text.find('\n'));
  }

  void Signal(int signal) const { ::kill(pid_, signal); }

  // Waits for the end; returns the exit code, or minus the signal.
  int Wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  std::string errors() const { return ReadFile(errors_); }

 private:
  const std::string folder_;
  const std::string errors_;
  pid_t pid_ = -1;
};

// Expects that reprised exits by itself with this code and one sentence.
void ExpectRefusal(const std::string& folder,
                   const std::vector<std::string>& flags, int code,
                   const std::string& sentence) {
  Reprised reprised(folder, flags);
  EXPECT_EQ(reprised.Wait(), code);
  const std::string text = reprised.errors();
  EXPECT_THAT(text, HasSubstr(sentence));
  EXPECT_THAT(text, ::testing::StartsWith("reprised: "));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(ReprisedTest, SaysWhereItListensAndRemovesThatOnACleanEnd) {
  const TemporaryFolder folder;
  Reprised reprised(folder.path());
  EXPECT_THAT(reprised.Address(), HasSubstr("127.0.0.1:"));

  reprised.Signal(SIGTERM);

  EXPECT_EQ(reprised.Wait(), 0);
  EXPECT_EQ(::access((folder.path() + "/run/server.json").c_str(), F_OK), -1);
  EXPECT_THAT(reprised.errors(), HasSubstr("listening on 127.0.0.1:"));
  EXPECT_THAT(reprised.errors(), EndsWith("stopped\n"));
}

TEST(ReprisedTest, EndsCleanlyWhenItsTerminalIsClosed) {
  const TemporaryFolder folder;
  Reprised reprised(folder.path());
  (void)reprised.Address();

  reprised.Signal(SIGHUP);

  EXPECT_EQ(reprised.Wait(), 0);
  EXPECT_THAT(reprised.errors(), EndsWith("stopped\n"));
}

TEST(ReprisedTest, RefusesToBeTheSecondInAFolder) {
  const TemporaryFolder folder;
  Reprised first(folder.path());
  (void)first.Address();
  const TemporaryFolder other;

  ExpectRefusal(other.path(), Reprised::Flags(folder.path()), 1,
                "another reprised (pid ");
  // Sharing only the runtime folder is refused, too.
  std::vector<std::string> flags = Reprised::Flags(folder.path());
  flags[3] = other.path() + "/data";
  ExpectRefusal(other.path(), flags, 1, "another reprised (pid ");
}

TEST(ReprisedTest, RefusesAPortInUse) {
  const TemporaryFolder folder;
  Reprised first(folder.path());
  const std::string address = first.Address();
  const TemporaryFolder other;
  std::vector<std::string> flags = Reprised::Flags(other.path());
  flags[1] = address;

  ExpectRefusal(other.path(), flags, 1, "the port is in use");
}

TEST(ReprisedTest, RefusesAFolderItCannotWriteTo) {
  const TemporaryFolder folder;
  std::vector<std::string> flags = Reprised::Flags(folder.path());
  flags[3] = "/proc/self/reprise";  // even root cannot write here

  ExpectRefusal(folder.path(), flags, 1, "/proc/self/reprise");
}

TEST(ReprisedTest, RefusesAFileInPlaceOfAFolder) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/data") << "x";

  ExpectRefusal(folder.path(), Reprised::Flags(folder.path()), 1,
                "is not a folder");
}

TEST(ReprisedTest, RefusesAddressesBeyondThisMachine) {
  const TemporaryFolder folder;
  std::vector<std::string> flags = Reprised::Flags(folder.path());
  flags[1] = "0.0.0.0:7070";

  ExpectRefusal(folder.path(), flags, 1,
                "--listen: 0.0.0.0:7070 is reached from other machines: that "
                "needs --tls-cert, --tls-key and --token-file");
}

TEST(ReprisedTest, ExitsWithTwoForWrongUsage) {
  const TemporaryFolder folder;
  ExpectRefusal(folder.path(), {"--nonsense"}, 2, "--nonsense");
  ExpectRefusal(folder.path(), {"--log-level", "loud"}, 2, "log level");
  ExpectRefusal(folder.path(),
                {"--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"}, 2,
                "--listen");
}

TEST(ReprisedTest, LosesNothingAcknowledgedWhenItIsKilled) {
  constexpr uint64_t kChunks = 3000;
  constexpr int kKills = 6;
  const TemporaryFolder folder;
  uint64_t acknowledged = 0;
  int lives = 0;
  while (acknowledged < kChunks) {
    ++lives;
    Reprised reprised(folder.path());
    const std::string address = reprised.Address();
    const auto stub = v1::Ingest::NewStub(ChannelTo(address, reprised.Token()));
    Sender sender(*stub, "s1", "r1");
    const std::optional<uint64_t> resume = sender.Greet();
    ASSERT_TRUE(resume);
    ASSERT_GE(*resume, acknowledged);  // nothing acknowledged is lost
    acknowledged = *resume;
    const uint64_t until =
        lives > kKills ? kChunks : acknowledged + kChunks / (kKills + 2);
    uint64_t sent = acknowledged;
    while (acknowledged < until) {
      while (sent < kChunks && sent < acknowledged + 64) {
        if (!sender.SendChunk(OpChunk(++sent))) break;
      }
      const std::optional<v1::Down> down = sender.Read();
      ASSERT_TRUE(down);
      if (down->has_ack()) acknowledged = down->ack().committed();
    }
    reprised.Signal(SIGKILL);  // while the next chunks arrive
    EXPECT_EQ(reprised.Wait(), -SIGKILL);
  }
  EXPECT_GT(lives, kKills);

  StatusOr<Database> database =
      Database::Open(folder.path() + "/data/reprise.db");
  ASSERT_TRUE(database.ok());
  const auto number = [&](const char* sql) {
    StatusOr<Statement> statement = database->Prepare(sql);
    EXPECT_TRUE(statement.ok() && statement->Step().ok());
    return statement->Int(0);
  };
  EXPECT_EQ(number("SELECT count(*) FROM chunks"), kChunks);
  EXPECT_EQ(number("SELECT sum(seq) FROM chunks"), kChunks * (kChunks + 1) / 2);
  EXPECT_EQ(number("SELECT records FROM runs"), kChunks * 3);
  EXPECT_EQ(number("SELECT committed FROM streams"), kChunks);
  EXPECT_EQ(number("SELECT count(*) FROM pragma_integrity_check"
                   " WHERE integrity_check = 'ok'"),
            1);
}

TEST(ReprisedTest, EndsASessionWhoseProcessIsGone) {
  const TemporaryFolder folder;
  Reprised reprised(folder.path());
  const std::string address = reprised.Address();  // returns once it is up
  const auto channel = ChannelTo(address, reprised.Token());
  const auto ingest = v1::Ingest::NewStub(channel);
  const auto query = v1::Query::NewStub(channel);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  {
    Sender sender(*ingest, "s1", "r1");
    std::string boot_id = ReadFile("/proc/sys/kernel/random/boot_id");
    boot_id.pop_back();
    sender.hello.mutable_info()->set_boot_id(boot_id);
    sender.hello.mutable_info()->set_pid(static_cast<uint32_t>(child));
    sender.hello.mutable_info()->set_pid_start_ticks(1);
    ASSERT_TRUE(sender.Greet());
  }

  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::GetRunRequest request;
    request.set_run_id("r1");
    v1::Run run;
    return query->GetRun(&context, request, &run).ok() &&
           run.state() == v1::RUN_STATE_KILLED;
  }));
}

}  // namespace
}  // namespace reprise::server
