// Dependencies, exports and size of the built library. It is loaded into other
// people's processes, so these are promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

namespace reprise::profiler::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Output(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    output.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

// Returns the distinct lines that a shell pipeline prints.
std::set<std::string> Lines(const std::string& command) {
  std::istringstream output(Output(command));
  std::set<std::string> lines;
  for (std::string line; std::getline(output, line);) lines.insert(line);
  return lines;
}

const std::string kLibrary = REPRISE_AGENT_LIBRARY;

TEST(SharedObjectTest, NeedsLibcAlone) {
  EXPECT_THAT(Lines("readelf -dW " + kLibrary +
                    " | sed -n 's/.*(NEEDED).*\\[\\(.*\\)\\]/\\1/p'"),
              ElementsAre("libc.so.6"));
  EXPECT_THAT(Output("readelf -dW " + kLibrary), HasSubstr("BIND_NOW"));
}

TEST(SharedObjectTest, ExportsItsAbiAndNothingElse) {
  const std::set<std::string> exported =
      Lines("nm -D --defined-only " + kLibrary + " | awk '{print $3}'");
  // The header's functions are the names before a parenthesis.
  const std::set<std::string> declared =
      Lines("sed 's:/\\*.*::' " REPRISE_SOURCE_DIR
            "/profiler/include/reprise_agent.h | grep -v '^ \\*' | "
            "grep -oE '(reprise_[a-z_]+|InitializeInjection)\\(' | tr -d '('");

  EXPECT_EQ(exported, declared);
  EXPECT_THAT(exported, Contains("reprise_start"));
}

TEST(SharedObjectTest, ImportsNoThreadsAndNoNewGlibc) {
  const std::string imports = Output("nm -D --undefined-only " + kLibrary);

  EXPECT_THAT(imports, Not(HasSubstr("pthread_create")));
  EXPECT_THAT(imports, Not(HasSubstr("__tls_get_addr")));
  EXPECT_THAT(imports, Not(HasSubstr("_Zn")));  // operator new
  for (const std::string& minor :
       Lines("nm -D --undefined-only " + kLibrary +
             " | grep -oE 'GLIBC_2\\.[0-9]+' | cut -d. -f2"))
    EXPECT_LE(std::stoi(minor), 34);
}

TEST(SharedObjectTest, IsSmall) {
  const std::string stripped =
      (std::filesystem::temp_directory_path() /
       ("reprise-stripped-" + std::to_string(getpid()) + ".so"))
          .string();
  Output("strip -o " + stripped + " " + kLibrary);
  const uintmax_t bytes = std::filesystem::file_size(stripped);
  std::filesystem::remove(stripped);

  EXPECT_LE(bytes, 64u * 1024);
}

}  // namespace
}  // namespace reprise::profiler::testing
