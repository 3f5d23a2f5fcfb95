// What the built library may need, export and weigh. It is loaded into other
// people's processes, so these are promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <string>

namespace reprise::profiler::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;

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

std::set<std::string> Matches(const std::string& text, const char* pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end;
       ++it)
    found.insert((*it)[1]);
  return found;
}

const std::string kLibrary = REPRISE_AGENT_LIBRARY;

TEST(SharedObjectTest, NeedsLibcAlone) {
  const std::string dynamic = Output("readelf -dW " + kLibrary);

  EXPECT_THAT(Matches(dynamic, R"(NEEDED.*\[(.*)\])"),
              ElementsAre("libc.so.6"));
  EXPECT_THAT(dynamic, ::testing::HasSubstr("NOW"));
}

TEST(SharedObjectTest, ExportsItsAbiAndNothingElse) {
  const std::string symbols = Output("nm -D --defined-only " + kLibrary);

  const std::set<std::string> exported = Matches(symbols, R"( [A-Za-z] (\S+))");
  for (const std::string& name : exported)
    EXPECT_THAT(name, MatchesRegex("reprise_.*|InitializeInjection"));
  // Everything that the header declares is there.
  const std::string header =
      Output("cat " REPRISE_SOURCE_DIR "/profiler/include/reprise_agent.h");
  std::set<std::string> declared = Matches(
      header,
      R"((reprise_[a-z_]+|InitializeInjection)\(\s*(?:void|const|uint|int|reprise))");
  EXPECT_EQ(exported, declared);
}

TEST(SharedObjectTest, ImportsNoThreadsAndNoNewGlibc) {
  const std::string imports = Output("nm -D --undefined-only " + kLibrary);

  EXPECT_THAT(imports, ::testing::Not(::testing::HasSubstr("pthread_create")));
  EXPECT_THAT(imports, ::testing::Not(::testing::HasSubstr("__tls_get_addr")));
  EXPECT_THAT(imports, ::testing::Not(::testing::HasSubstr("_Zn")));
  for (const std::string& minor : Matches(imports, R"(GLIBC_2\.(\d+))"))
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
