// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/completion.h"

#include <vector>

#include "base/str_cat.h"

namespace reprise::cli {
namespace {

struct Verb {
  std::string name;
  std::string description;
  std::vector<std::string> options;  // "--budget"
};

std::vector<std::string> LongOptions(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

std::vector<Verb> Verbs(const CLI::App& app) {
  std::vector<Verb> verbs;
  const std::vector<std::string> everywhere = LongOptions(app);
  for (const CLI::App* sub : app.get_subcommands({})) {
    Verb verb{.name = sub->get_name(),
              .description = sub->get_description(),
              .options = LongOptions(*sub)};
    verb.options.insert(verb.options.end(), everywhere.begin(),
                        everywhere.end());
    verbs.push_back(std::move(verb));
  }
  return verbs;
}

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += StrCat(text.empty() ? "" : " ", word);
  }
  return text;
}

std::string Names(const std::vector<Verb>& verbs) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.push_back(verb.name);
  return Join(names);
}

std::string Bash(const CLI::App& app) {
  const std::vector<Verb> verbs = Verbs(app);
  std::string text =
      "# reprise: completion for bash.  source <(reprise --completion bash)\n"
      "_reprise() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} words\n"
      "  case ${COMP_WORDS[1]} in\n";
  for (const Verb& verb : verbs) {
    text +=
        StrCat("    ", verb.name, ") words=\"", Join(verb.options), "\" ;;\n");
  }
  text += StrCat("    *) words=\"", Names(verbs), " ", Join(LongOptions(app)),
                 "\" ;;\n");
  return text +
         "  esac\n"
         "  if [[ $COMP_CWORD -gt 1 && $current != -* ]]; then\n"
         "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _reprise reprise\n";
}

std::string Zsh(const CLI::App& app) {
  std::string text =
      "#compdef reprise\n"
      "# reprise: completion for zsh.  source <(reprise --completion zsh)\n"
      "_reprise() {\n"
      "  if (( CURRENT == 2 )); then\n"
      "    local -a verbs=(\n";
  std::string cases;
  for (const Verb& verb : Verbs(app)) {
    std::string description;
    for (const char c : verb.description) {
      description += c == ':' ? ";" : c == '\'' ? "" : std::string(1, c);
    }
    text += StrCat("      '", verb.name, ":", description, "'\n");
    cases +=
        StrCat("    ", verb.name, ") compadd -- ", Join(verb.options), " ;;\n");
  }
  return text +
         "    )\n"
         "    _describe 'command' verbs\n"
         "    return\n"
         "  fi\n"
         "  if [[ $words[CURRENT] != -* ]]; then _files; return; fi\n"
         "  case $words[2] in\n" +
         cases +
         "  esac\n"
         "}\n"
         "compdef _reprise reprise\n";
}

std::string Fish(const CLI::App& app) {
  std::string text =
      "# reprise: completion for fish.  reprise --completion fish | source\n";
  for (const Verb& verb : Verbs(app)) {
    std::string description;
    for (const char c : verb.description) {
      if (c != '\'') description += c;
    }
    text += StrCat("complete -c reprise -n __fish_use_subcommand -a ",
                   verb.name, " -d '", description, "'\n");
    for (const std::string& option : verb.options) {
      text += StrCat("complete -c reprise -n '__fish_seen_subcommand_from ",
                     verb.name, "' -l ", option.substr(2), "\n");
    }
  }
  return text;
}

}  // namespace

StatusOr<std::string> CompletionScript(const CLI::App& app,
                                       const std::string& shell) {
  if (shell == "bash") return Bash(app);
  if (shell == "zsh") return Zsh(app);
  if (shell == "fish") return Fish(app);
  return InvalidArgument(
      StrCat("--completion ", shell, ": must be bash, zsh or fish"));
}

}  // namespace reprise::cli
