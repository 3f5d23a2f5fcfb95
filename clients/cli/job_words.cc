// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/job_words.h"

#include <algorithm>

namespace reprise::cli {
namespace {

// What a word of the form "--name", "--name=value", "-n" or "-nvalue" is.
struct Flag {
  bool known = false;
  bool wants_next = false;  // its value is the next word
};

Flag Find(const Verb& verb, const std::string& word) {
  const bool is_long = word.starts_with("--");
  const size_t equals = word.find('=');
  const std::string name = is_long ? word.substr(0, equals) : word.substr(0, 2);
  const bool has_value =
      is_long ? equals != std::string::npos : word.size() > 2;
  for (const OptionFacts& option : verb.options()) {
    if (std::find(option.names.begin(), option.names.end(), name) ==
        option.names.end()) {
      continue;
    }
    return {.known = true, .wants_next = option.takes_value && !has_value};
  }
  return {};
}

}  // namespace

bool TakesJob(const std::string& verb) {
  return verb == "run" || verb == "fit";
}

size_t JobBegins(const CommandLine& line,
                 const std::vector<std::string>& words) {
  const Verb* typed = nullptr;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--help" || word == "-h") return words.size();
    if (word.size() > 1 && word[0] == '-') {
      Flag flag = Find(line.everywhere(), word);
      if (!flag.known && typed != nullptr) flag = Find(*typed, word);
      if (!flag.known) return words.size();
      if (flag.wants_next) ++i;
      continue;
    }
    if (typed != nullptr) return i;
    if (!TakesJob(word)) return words.size();
    for (const auto& verb : line.verbs()) {
      if (verb->name() == word) typed = verb.get();
    }
    if (typed == nullptr) return words.size();
  }
  return words.size();
}

}  // namespace reprise::cli
