// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "clients/cli/typed_words.h"

namespace reprise::cli {
namespace {

using Words = std::vector<std::string>;

TEST(JobWords, TheFirstWordThatIsNoFlagBeginsTheJob) {
  CommandLine line("reprise", "", "reprise 1");
  std::string server, budget;
  bool quiet = false, keep = false;
  line.everywhere().Add("--server", server, "");
  line.everywhere().Flag("--quiet,-q,!--no-quiet", quiet, "");
  Verb& run = line.AddVerb("run", "");
  run.Add("--budget,-b", budget, "");
  run.Flag("--keep-injection", keep, "");
  line.AddVerb("plan", "").Add("GRAPH", server, "");
  const auto begins = [&](const Words& words) {
    return JobBegins(line, words);
  };

  EXPECT_EQ(begins({"run", "python", "train.py", "--lr", "1"}), 1u);
  EXPECT_EQ(begins({"run", "--budget", "0.5x", "python", "-b", "2"}), 3u);
  EXPECT_EQ(begins({"run", "--budget=0.5x", "python"}), 2u);
  EXPECT_EQ(begins({"run", "-b", "0.5x", "run"}), 3u);
  EXPECT_EQ(begins({"run", "-b0.5x", "python"}), 2u);
  EXPECT_EQ(begins({"run", "--keep-injection", "-q", "python"}), 3u);
  EXPECT_EQ(begins({"--server", "run", "--no-quiet", "run", "python"}), 4u);
  // No job: of another verb, before a known end, or none at all.
  EXPECT_EQ(begins({"plan", "a.json"}), 2u);
  EXPECT_EQ(begins({"run", "--budget", "0.5x"}), 3u);
  EXPECT_EQ(begins({"run", "--budget"}), 2u);
  EXPECT_EQ(begins({"run", "--bugdet", "0.5x", "python"}), 4u);
  EXPECT_EQ(begins({"run", "--help", "python"}), 3u);
  EXPECT_EQ(begins({}), 0u);
}

}  // namespace
}  // namespace reprise::cli
