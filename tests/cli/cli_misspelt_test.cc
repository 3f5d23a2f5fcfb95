// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "clients/cli/typed_words.h"

namespace reprise::cli {
namespace {

struct Case {
  std::string typed, meant;
};

TEST(Misspelt, TheKnownWordWithTheFewestErrorsIsMeant) {
  const std::vector<std::string> known = {"plan", "sweep", "explain", "show",
                                          "status"};
  for (const auto& [typed, meant] : std::vector<Case>{{"plna", "plan"},
                                                      {"pla", "plan"},
                                                      {"statsu", "status"},
                                                      {"swepe", "sweep"},
                                                      {"explian", "explain"},
                                                      {"frobnicate", ""},
                                                      {"x", ""}}) {
    EXPECT_EQ(Nearest(typed, known), meant) << typed;
  }
}

TEST(Misspelt, TheFirstUnknownFlagIsNamedAndValuesAreNot) {
  CommandLine line("reprise", "", "reprise 1");
  bool json = false;
  std::string budget, out;
  line.everywhere().Flag("--json,!--no-json", json, "");
  Verb& plan = line.AddVerb("plan", "");
  plan.Add("--budget", budget, "");
  plan.Add("--out,-o", out, "");

  EXPECT_EQ(FirstUnknown(line, &plan, {"plan", "a.json", "--budgt=1GiB"}),
            "--budgt: `reprise plan` has no such flag; did you mean "
            "--budget?");
  EXPECT_EQ(FirstUnknown(line, &plan, {"plan", "--colour", "--budgt"}),
            "--colour: `reprise plan` has no such flag");
  EXPECT_EQ(FirstUnknown(line, nullptr, {"--jsn"}),
            "--jsn: `reprise` has no such flag; did you mean --json?");
  EXPECT_EQ(FirstUnknown(line, nullptr, {"--json", "plam"}),
            "plam: no such command; did you mean `plan`?");
  EXPECT_EQ(
      FirstUnknown(line, &plan,
                   {"plan", "--no-json", "--budget", "-1", "-o", "--json"}),
      "");
}

}  // namespace
}  // namespace reprise::cli
