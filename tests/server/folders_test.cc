// SPDX-License-Identifier: Apache-2.0
//
// The daemon's folders: who may write to them, and which daemon holds them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "server/core/paths.h"
#include "tests/server/temporary_folder.h"

namespace reprise::server {
namespace {

using ::testing::HasSubstr;

// ---- Who may write to them ----

TEST(OwnFolderTest, IsMadeForThisUserAlone) {
  const TemporaryFolder folder;
  const std::string made = folder.path() + "/a/b";

  ASSERT_TRUE(EnsureOwnFolder(made).ok());

  EXPECT_EQ(ModeOf(made), 0700u);
}

TEST(OwnFolderTest, IsClosedWhereItIsEmpty) {
  const TemporaryFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);

  ASSERT_TRUE(EnsureOwnFolder(folder.path()).ok());

  EXPECT_EQ(ModeOf(folder.path()), 0755u);
}

TEST(OwnFolderTest, StaysOpenAndIsRefusedWhereOthersShareIt) {
  struct Case {
    mode_t mode;
    bool has_file;
    const char* advice;
  };
  for (const Case& c :
       {Case{01777, false, "own, such as "}, Case{01777, true, "own, such as "},
        Case{0775, true, "or run `chmod go-w "}}) {
    const TemporaryFolder folder;
    ASSERT_EQ(::chmod(folder.path().c_str(), c.mode), 0);
    if (c.has_file) std::ofstream(folder.path() + "/model.py") << "pass";

    const Status status = EnsureOwnFolder(folder.path());

    EXPECT_EQ(status.code(), Code::kPermissionDenied);
    EXPECT_THAT(status.message(), HasSubstr("others may write to this folder"));
    EXPECT_THAT(status.message(), HasSubstr(c.advice));
    EXPECT_EQ(ModeOf(folder.path()), c.mode);
  }
}

// ---- Which daemon holds them ----

TEST(LockFileTest, NamesThePidOfTheHolder) {
  const TemporaryFolder folder;
  const auto first = LockFile::Take(folder.path(), /*yields=*/false);
  ASSERT_TRUE(first.ok());

  const auto second = LockFile::Take(folder.path(), /*yields=*/false);

  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(second.status().message(),
              HasSubstr("pid " + std::to_string(::getpid())));
}

TEST(LockFileTest, LeavesAHolderAloneThatItMayNotAsk) {
  const TemporaryFolder folder;
  const auto idle = LockFile::Take(folder.path(), /*yields=*/true);
  ASSERT_TRUE(idle.ok());

  // Asking would end this process.
  const auto second =
      LockFile::Take(folder.path(), /*yields=*/false, /*asks=*/false);

  EXPECT_EQ(second.status().code(), Code::kAlreadyExists);
}

TEST(LockFileTest, SignalsNoProcessForAHolderOnAnotherMachine) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/reprised.lock";
  const int elsewhere =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(elsewhere, LOCK_EX), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  std::ofstream(path) << child << " yields 00000000";

  const auto taken = LockFile::Take(folder.path(), /*yields=*/false);

  int how = 0;
  EXPECT_EQ(::waitpid(child, &how, WNOHANG), 0) << "it was signalled";
  ::kill(child, SIGKILL);
  ::waitpid(child, &how, 0);
  ::close(elsewhere);
  EXPECT_EQ(taken.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(taken.status().message(),
              HasSubstr("of another machine or container"));
}

TEST(LockFileTest, AlwaysHasAHolderInItsFileOnceOneHasWrittenIt) {
  const TemporaryFolder folder;
  ASSERT_TRUE(LockFile::Take(folder.path(), /*yields=*/true).ok());
  std::atomic<bool> done = false;
  std::atomic<int> empty = 0;
  std::thread reader([&] {
    while (!done) {
      std::ifstream file(folder.path() + "/reprised.lock");
      std::string pid;
      if (!(file >> pid)) ++empty;
    }
  });

  for (int i = 0; i < 2000; ++i)
    EXPECT_TRUE(LockFile::Take(folder.path(), /*yields=*/i % 2 == 0).ok());

  done = true;
  reader.join();
  EXPECT_EQ(empty, 0);
}

TEST(LockFileTest, KnowsWhetherTheLastHolderEndedProperly) {
  const TemporaryFolder folder;
  {
    const auto first = LockFile::Take(folder.path(), /*yields=*/false);
    ASSERT_TRUE(first.ok());
    EXPECT_FALSE(first->was_left());
    // Who is refused writes nothing of an end.
    EXPECT_FALSE(LockFile::Take(folder.path(), /*yields=*/false).ok());
    std::ifstream file(folder.path() + "/reprised.lock");
    std::string pid, how;
    file >> pid >> how;
    EXPECT_EQ(how, "");
  }
  EXPECT_FALSE(LockFile::Take(folder.path(), /*yields=*/true)->was_left());
  std::ofstream(folder.path() + "/reprised.lock") << "1234 yields";
  EXPECT_TRUE(LockFile::Take(folder.path(), /*yields=*/true)->was_left());
  EXPECT_FALSE(LockFile::Take(folder.path(), /*yields=*/true)->was_left());
}

TEST(LockFileTest, WaitsForAHolderThatHasNotWrittenItsPidYet) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/reprised.lock";
  const int starting = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(starting, LOCK_EX), 0);
  std::thread leaves([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ::close(starting);
  });

  EXPECT_TRUE(LockFile::Take(folder.path(), /*yields=*/false).ok());

  leaves.join();
}

}  // namespace
}  // namespace reprise::server
