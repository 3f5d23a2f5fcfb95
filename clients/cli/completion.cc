// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <span>

#include "base/str_cat.h"
#include "clients/cli/core/command.h"

namespace reprise::cli {
namespace {

// Every key press asks the command itself, so a script knows no verb.
constexpr const char* kBash = R"(# source <(reprise --completion bash)
_reprise() {
  local current=${COMP_WORDS[COMP_CWORD]} offered
  offered=$(reprise --completion words -- \
    "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  COMPREPLY=($(compgen -W "${offered//:files/}" -- "$current"))
  if [[ $offered == *:files* ]]; then
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}
complete -o filenames -F _reprise reprise
)";

constexpr const char* kZsh = R"(#compdef reprise
# source <(reprise --completion zsh)
_reprise() {
  local -a offered=("${(@f)$(reprise --completion words -- \
    "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compadd -- ${offered:#:files}
  if (( ${offered[(Ie):files]} )); then _files; fi
}
compdef _reprise reprise
)";

constexpr const char* kFish = R"(# reprise --completion fish | source
function _reprise
  set -l typed (commandline -opc) (commandline -ct)
  for word in (reprise --completion words -- $typed[2..-1] 2>/dev/null)
    if test "$word" = :files
      __fish_complete_path (commandline -ct)
    else
      echo $word
    end
  end
end
complete -c reprise -f -a '(_reprise)'
)";

const OptionFacts* OptionOf(const Verb& verb, const std::string& name) {
  for (const OptionFacts& option : verb.options()) {
    const auto& names = option.names;
    // An argument has no name.
    if (names.empty()
            ? name.empty()
            : std::find(names.begin(), names.end(), name) != names.end()) {
      return &option;
    }
  }
  return nullptr;
}

Offer ValuesOf(const OptionFacts& option) {
  const Rule& rule = option.rule;
  return {.words = rule.one_of.empty() ? rule.offers : rule.one_of,
          .runs = rule.completes == Completes::kRuns,
          .files = rule.completes != Completes::kNothing};
}

}  // namespace

Offer Offered(const CommandLine& line, std::span<const std::string> words) {
  Offer offer;
  const Verb* verb = nullptr;
  for (const auto& known : line.verbs()) {
    offer.words.push_back(known->name());
    if (words.size() > 1 && words[0] == known->name()) verb = known.get();
  }
  const std::vector<std::string> everywhere = line.everywhere().LongNames();
  if (words.size() > 1) {
    const std::string& before = words[words.size() - 2];
    for (const Verb* of : {verb, &std::as_const(line).everywhere()}) {
      const OptionFacts* option =
          of == nullptr || before.empty() ? nullptr : OptionOf(*of, before);
      if (option != nullptr && option->takes_value) return ValuesOf(*option);
    }
  }
  if (verb != nullptr && !words.back().starts_with('-')) {
    const OptionFacts* argument = OptionOf(*verb, "");
    return argument != nullptr ? ValuesOf(*argument) : Offer{.files = true};
  }
  if (verb != nullptr) offer.words = verb->LongNames();
  offer.words.insert(offer.words.end(), everywhere.begin(), everywhere.end());
  return offer;
}

StatusOr<std::string> CompletionScript(const std::string& shell) {
  if (shell == "bash") return std::string(kBash);
  if (shell == "zsh") return std::string(kZsh);
  if (shell == "fish") return std::string(kFish);
  return InvalidArgument(
      StrCat("--completion ", shell, ": must be bash, zsh or fish"));
}

}  // namespace reprise::cli
