// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/core/options.h"

#include <CLI/CLI.hpp>
#include <sstream>

namespace reprise::cli {
namespace {

// Returns a message of CLI11 in one line, without its full stop.
std::string OneLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) {
    text.pop_back();
  }
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

// Splits "--force,!--no-force,-f" into names, without the "!".
std::vector<std::string> SplitNames(const std::string& names) {
  std::vector<std::string> split;
  std::istringstream in(names);
  for (std::string name; std::getline(in, name, ',');) {
    if (name.front() == '!') name.erase(0, 1);
    if (name.front() == '-') split.push_back(name);
  }
  return split;
}

void Apply(const Rule& rule, bool is_whole, CLI::Option& option) {
  if (rule.required) option.required();
  if (!rule.environment.empty()) option.envname(rule.environment);
  if (!rule.one_of.empty()) option.check(CLI::IsMember(rule.one_of));
  if (rule.range) {
    const auto& [least, most] = *rule.range;
    option.check(
        is_whole ? CLI::Range(static_cast<int>(least), static_cast<int>(most))
                 : CLI::Range(least, most));
  }
  if (rule.not_negative) option.check(CLI::NonNegativeNumber);
  if (rule.shows_default) option.capture_default_str();
}

}  // namespace

struct Verb::Parser {
  CLI::App* app;
};

Verb::Verb(std::unique_ptr<Parser> parser, std::string name,
           std::string description)
    : parser_(std::move(parser)),
      name_(std::move(name)),
      description_(std::move(description)) {}

Verb::~Verb() = default;

void Verb::Add(const std::string& names, Variable variable,
               const std::string& help, Rule rule) {
  CLI::Option* option = std::visit(
      [&](auto* value) {
        return parser_->app->add_option(names, *value, help);
      },
      variable);
  Apply(rule, !std::holds_alternative<double*>(variable), *option);
  options_.push_back({.names = SplitNames(names),
                      .takes_value = true,
                      .rule = std::move(rule)});
}

void Verb::Flag(const std::string& names, bool& variable,
                const std::string& help) {
  parser_->app->add_flag(names, variable, help);
  options_.push_back(
      {.names = SplitNames(names), .takes_value = false, .rule = {}});
}

void Verb::Footer(const std::string& text) { parser_->app->footer(text); }

bool Verb::Given(const std::string& name) const {
  const CLI::Option* option = parser_->app->get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

std::vector<std::string> Verb::LongNames() const {
  std::vector<std::string> names;
  for (const OptionFacts& option : options_) {
    for (const std::string& name : option.names) {
      if (name.rfind("--", 0) == 0) names.push_back(name);
    }
  }
  return names;
}

struct CommandLine::Parser {
  CLI::App app;
};

CommandLine::CommandLine(const std::string& name,
                         const std::string& description,
                         const std::string& version)
    : parser_(new Parser{CLI::App(description, name)}) {
  CLI::App& app = parser_->app;
  app.require_subcommand(0, 1);
  app.fallthrough();  // accepts --json after the verb, too
  everywhere_.reset(
      new Verb(std::unique_ptr<Verb::Parser>(new Verb::Parser{&app}), name,
               description));
  app.set_version_flag("--version", version);
  for (const char* flag : {"--help", "--version"}) {
    everywhere_->options_.push_back(
        {.names = {flag}, .takes_value = false, .rule = {}});
  }
}

CommandLine::~CommandLine() = default;

Verb& CommandLine::AddVerb(const std::string& name,
                           const std::string& description) {
  CLI::App* app = parser_->app.add_subcommand(name, description);
  verbs_.emplace_back(new Verb(
      std::unique_ptr<Verb::Parser>(new Verb::Parser{app}), name, description));
  return *verbs_.back();
}

Parsed CommandLine::Parse(const std::vector<std::string>& words) {
  // CLI11 expects the words in reverse order.
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    parser_->app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return {.kind = Parsed::Kind::kHelp};
  } catch (const CLI::CallForVersion&) {
    return {.kind = Parsed::Kind::kVersion};
  } catch (const CLI::ParseError& error) {
    return {.kind = Parsed::Kind::kWrong, .error = OneLine(error.what())};
  }
  return {.kind = chosen() == nullptr ? Parsed::Kind::kNoVerb
                                      : Parsed::Kind::kVerb};
}

const Verb* CommandLine::chosen() const {
  for (const auto& verb : verbs_) {
    if (verb->parser_->app->parsed()) return verb.get();
  }
  return nullptr;
}

std::string CommandLine::Help(const Verb* verb) const {
  return verb == nullptr ? parser_->app.help()
                         : verb->parser_->app->help(parser_->app.get_name());
}

}  // namespace reprise::cli
