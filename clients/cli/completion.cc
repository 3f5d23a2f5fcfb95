// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"

namespace reprise::cli {
namespace {

std::string Join(const std::vector<std::string>& words,
                 const std::string& between = " ") {
  std::string text;
  for (const std::string& word : words) {
    text += StrCat(text.empty() ? "" : between, word);
  }
  return text;
}

// Returns the options of a verb, then those of all verbs.
std::vector<OptionFacts> AllOptions(const CommandLine& line, const Verb& verb) {
  std::vector<OptionFacts> all = verb.options();
  const std::vector<OptionFacts>& more = line.everywhere().options();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Returns the long names of the options of a verb, then those of all verbs.
std::vector<std::string> AllLongNames(const CommandLine& line,
                                      const Verb& verb) {
  std::vector<std::string> names = verb.LongNames();
  for (std::string& name : line.everywhere().LongNames()) {
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> Values(const OptionFacts& option) {
  return option.rule.one_of.empty() ? option.rule.offers : option.rule.one_of;
}

// Returns a verb's first argument, or null if it has none.
const OptionFacts* Argument(const Verb& verb) {
  for (const OptionFacts& option : verb.options()) {
    if (option.names.empty()) return &option;
  }
  return nullptr;
}

// Escapes `text` for a string in single quotes.
std::string Quotable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c != '\'') out += c;
  }
  return out;
}

// What a shell completes a value with, in the shell's syntax.
struct Completers {
  std::string files, runs, nothing;
  std::string (*values)(const std::string& words);
};

std::string Completer(const OptionFacts& option, const Completers& shell) {
  const std::vector<std::string> values = Values(option);
  if (!values.empty()) return shell.values(Join(values));
  switch (option.rule.completes) {
    case Completes::kFiles:
      return shell.files;
    case Completes::kRuns:
      return shell.runs;
    case Completes::kNothing:
      return shell.nothing;
  }
  return shell.nothing;
}

// The branches of a script's `case` statements, one line each.
struct Cases {
  std::string options;    // "verb": the options that may follow
  std::string values;     // "verb --option": the values of the option
  std::string arguments;  // "verb": the values of its argument
};

// Bash and zsh have the same `case`. `offer` completes one of some words, the
// options of a verb.
Cases CasesOf(const CommandLine& line, const Completers& shell,
              std::string (*offer)(const std::string& words)) {
  Cases cases;
  for (const auto& verb : line.verbs()) {
    cases.options += StrCat("    ", verb->name(), ") ",
                            offer(Join(AllLongNames(line, *verb))), " ;;\n");
    for (const OptionFacts& option : AllOptions(line, *verb)) {
      if (!option.takes_value || option.names.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) {
        patterns.push_back(StrCat("\"", verb->name(), " ", name, "\""));
      }
      cases.values += StrCat("      ", Join(patterns, "|"), ") ",
                             Completer(option, shell), "; return ;;\n");
    }
    if (const OptionFacts* argument = Argument(*verb)) {
      cases.arguments += StrCat("      ", verb->name(), ") ",
                                Completer(*argument, shell), " ;;\n");
    }
  }
  return cases;
}

std::string Bash(const CommandLine& line) {
  const Completers shell = {
      .files = "_reprise_files",
      .runs =
          "_reprise_words \"$(reprise --completion runs 2>/dev/null)\"; "
          "_reprise_files",
      .nothing = ":",
      .values = [](const std::string& words) {
        return StrCat("_reprise_words \"", words, "\"");
      }};
  const Cases cases = CasesOf(line, shell, [](const std::string& words) {
    return StrCat("words=\"", words, "\"");
  });
  std::vector<std::string> verbs;
  for (const auto& verb : line.verbs()) verbs.push_back(verb->name());
  const std::string everywhere = Join(line.everywhere().LongNames());
  return StrCat(
      "# reprise: completion for bash.  source <(reprise --completion bash)\n"
      "_reprise_words() { COMPREPLY+=($(compgen -W \"$1\" -- "
      "\"$current\")); }\n"
      "_reprise_files() { COMPREPLY+=($(compgen -f -- \"$current\")); }\n"
      "_reprise() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} words\n"
      "  COMPREPLY=()\n"
      "  case ${COMP_WORDS[1]} in\n",
      cases.options, "    *) words=\"", Join(verbs), " ", everywhere,
      "\" ;;\n"
      "  esac\n"
      "  if [[ $COMP_CWORD -gt 1 ]]; then\n"
      "    case \"${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}\" in\n",
      cases.values,
      "    esac\n"
      "  fi\n"
      "  if [[ $COMP_CWORD -gt 1 && $current != -* ]]; then\n"
      "    case ${COMP_WORDS[1]} in\n",
      cases.arguments,
      "      *) _reprise_files ;;\n"
      "    esac\n"
      "  else\n"
      "    _reprise_words \"$words\"\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _reprise reprise\n");
}

std::string Zsh(const CommandLine& line) {
  const Completers shell = {
      .files = "_files",
      .runs = "compadd -- $(reprise --completion runs 2>/dev/null); _files",
      .nothing = ":",
      .values = [](const std::string& words) {
        return StrCat("compadd -- ", words);
      }};
  const Cases cases = CasesOf(line, shell, shell.values);
  std::string verbs;
  for (const auto& verb : line.verbs()) {
    std::string description = Quotable(verb->description());
    for (char& c : description) {
      if (c == ':') c = ';';
    }
    verbs += StrCat("      '", verb->name(), ":", description, "'\n");
  }
  return StrCat(
      "#compdef reprise\n"
      "# reprise: completion for zsh.  source <(reprise --completion zsh)\n"
      "_reprise() {\n"
      "  if (( CURRENT == 2 )); then\n"
      "    local -a verbs=(\n",
      verbs,
      "    )\n"
      "    _describe 'command' verbs\n"
      "    return\n"
      "  fi\n"
      "  case \"$words[2] $words[CURRENT-1]\" in\n",
      cases.values,
      "  esac\n"
      "  if [[ $words[CURRENT] != -* ]]; then\n"
      "    case $words[2] in\n",
      cases.arguments,
      "      *) _files ;;\n"
      "    esac\n"
      "    return\n"
      "  fi\n"
      "  case $words[2] in\n",
      cases.options,
      "  esac\n"
      "}\n"
      "compdef _reprise reprise\n");
}

std::string Fish(const CommandLine& line) {
  const Completers shell = {
      .files = " -rF",
      .runs = " -rfa '(reprise --completion runs 2>/dev/null)'",
      .nothing = " -x",
      .values = [](const std::string& words) {
        return StrCat(" -xa '", words, "'");
      }};
  std::string text =
      "# reprise: completion for fish.  reprise --completion fish | source\n";
  for (const auto& verb : line.verbs()) {
    text += StrCat("complete -c reprise -n __fish_use_subcommand -a ",
                   verb->name(), " -d '", Quotable(verb->description()), "'\n");
    const std::string seen =
        StrCat("complete -c reprise -n '__fish_seen_subcommand_from ",
               verb->name(), "'");
    for (const OptionFacts& option : AllOptions(line, *verb)) {
      if (option.names.empty()) continue;
      for (const std::string& name : option.names) {
        if (name.rfind("--", 0) != 0) continue;
        text +=
            StrCat(seen, " -l ", name.substr(2),
                   option.takes_value ? Completer(option, shell) : "", "\n");
      }
    }
    const OptionFacts* argument = Argument(*verb);
    if (argument == nullptr) continue;
    if (argument->rule.completes == Completes::kRuns) {
      text += seen + " -a '(reprise --completion runs 2>/dev/null)'\n";
    } else if (!Values(*argument).empty()) {
      text += StrCat(seen, " -fa '", Join(Values(*argument)), "'\n");
    }
  }
  return text;
}

}  // namespace

StatusOr<std::string> CompletionScript(const CommandLine& line,
                                       const std::string& shell) {
  if (shell == "bash") return Bash(line);
  if (shell == "zsh") return Zsh(line);
  if (shell == "fish") return Fish(line);
  return InvalidArgument(
      StrCat("--completion ", shell, ": must be bash, zsh or fish"));
}

}  // namespace reprise::cli
