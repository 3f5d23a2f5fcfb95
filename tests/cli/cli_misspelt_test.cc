// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "clients/cli/misspelt.h"

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
  CLI::App app("", "reprise");
  bool json = false;
  std::string budget, out;
  app.add_flag("--json,!--no-json", json);
  CLI::App* plan = app.add_subcommand("plan");
  plan->add_option("--budget", budget);
  plan->add_option("--out,-o", out);

  EXPECT_EQ(FirstUnknown(app, *plan, {"plan", "a.json", "--budgt=1GiB"}),
            "--budgt: `reprise plan` has no such flag; did you mean "
            "--budget?");
  EXPECT_EQ(FirstUnknown(app, *plan, {"plan", "--colour", "--budgt"}),
            "--colour: `reprise plan` has no such flag");
  EXPECT_EQ(FirstUnknown(app, app, {"--jsn"}),
            "--jsn: `reprise` has no such flag; did you mean --json?");
  EXPECT_EQ(FirstUnknown(app, app, {"--json", "plam"}),
            "plam: no such command; did you mean `plan`?");
  EXPECT_EQ(
      FirstUnknown(app, *plan,
                   {"plan", "--no-json", "--budget", "-1", "-o", "--json"}),
      "");
}

}  // namespace
}  // namespace reprise::cli
