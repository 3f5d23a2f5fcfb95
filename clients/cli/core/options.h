// SPDX-License-Identifier: Apache-2.0
//
// The command line as data: the verbs, their options, and the variables that
// the options write. Only options.cc includes CLI11, whose header takes longer
// to compile than a whole verb. Completion scripts and the sentence about a
// misspelt word use the same data.
//
//   CommandLine line("reprise", "Fit a training job into a memory budget.");
//   Verb& plan = line.AddVerb("plan", "Make a plan");
//   plan.Add("GRAPH", graph, "A step graph file", {.required = true});
//   plan.Add("--budget,-b", budget, "8GiB, 0.5x", {.environment = "BUDGET"});
//   plan.Flag("--force,!--no-force", force, "Replace an existing file");
//   const Parsed parsed = line.Parse({"plan", "a.json", "--budget=8GiB"});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace reprise::cli {

// What a shell suggests as the value of an option or argument.
enum class Completes { kNothing, kFiles, kRuns };

// Restricts an option or argument.
struct Rule {
  bool required = false;
  // The help shows the variable's value when the option is added.
  bool shows_default = false;
  // Environment variable to read if the option is not given.
  std::string environment = {};
  // The allowed values; empty: any.
  std::vector<std::string> one_of = {};
  // For numbers; both ends are allowed.
  std::optional<std::pair<double, double>> range = {};
  bool not_negative = false;
  // Values that completion suggests in addition to `one_of`; others are
  // allowed.
  std::vector<std::string> offers = {};
  Completes completes = Completes::kNothing;
};

// The variable that an option writes. A vector takes several values.
using Variable = std::variant<std::string*, std::vector<std::string>*, int*,
                              uint32_t*, uint64_t*, double*,
                              std::optional<int>*, std::optional<int64_t>*>;

// An option or argument, as completion scripts need it.
struct OptionFacts {
  // As typed, with dashes: "--force", "--no-force", "-f". Empty for an
  // argument.
  std::vector<std::string> names;
  bool takes_value = true;
  Rule rule;
};

class CommandLine;

// One verb of the command, or the options of all verbs.
class Verb {
 public:
  ~Verb();

  // Adds an option (`names` as "--budget,-b") or an argument (a word in
  // capitals). `variable` must live until the arguments are parsed.
  void Add(const std::string& names, Variable variable, const std::string& help,
           Rule rule = {});
  template <typename T>
  void Add(const std::string& names, T& variable, const std::string& help,
           Rule rule = {}) {
    Add(names, Variable(&variable), help, std::move(rule));
  }

  // Adds a flag. In `names`, as in "--force,!--no-force", a name after "!" sets
  // the variable to false.
  void Flag(const std::string& names, bool& variable, const std::string& help);

  // Sets the end of the help: exit codes and an example.
  void Footer(const std::string& text);

  // Returns whether this option ("--gap") was among the parsed arguments.
  bool Given(const std::string& name) const;

  const std::string& name() const { return name_; }
  const std::string& description() const { return description_; }
  const std::vector<OptionFacts>& options() const { return options_; }

  // Returns the long names of its options, "--budget", in the order of the
  // help.
  std::vector<std::string> LongNames() const;

 private:
  friend class CommandLine;
  struct Parser;
  Verb(std::unique_ptr<Parser> parser, std::string name,
       std::string description);

  std::unique_ptr<Parser> parser_;
  std::string name_, description_;
  std::vector<OptionFacts> options_;
};

// Result of parsing the arguments.
struct Parsed {
  enum class Kind { kVerb, kNoVerb, kHelp, kVersion, kWrong };
  Kind kind = Kind::kNoVerb;
  // For kWrong: the error, in one line.
  std::string error = {};
};

class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& description,
              const std::string& version);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // The options that every verb accepts, before or after the verb.
  Verb& everywhere() { return *everywhere_; }
  const Verb& everywhere() const { return *everywhere_; }

  // Adds a verb; its options come after those of `everywhere`. The reference
  // stays valid.
  Verb& AddVerb(const std::string& name, const std::string& description);
  const std::vector<std::unique_ptr<Verb>>& verbs() const { return verbs_; }

  // Parses the arguments and writes the variables of their options. Call once.
  Parsed Parse(const std::vector<std::string>& words);

  // Returns the verb that was given, or null.
  const Verb* chosen() const;

  // Returns the help of a verb, or of the whole command if null.
  std::string Help(const Verb* verb) const;

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  std::unique_ptr<Verb> everywhere_;
  std::vector<std::unique_ptr<Verb>> verbs_;
};

}  // namespace reprise::cli
