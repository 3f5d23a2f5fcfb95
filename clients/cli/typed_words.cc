// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/typed_words.h"

#include <algorithm>
#include <cctype>

#include "base/str_cat.h"

namespace reprise::cli {
namespace {

// Returns the Damerau-Levenshtein distance, with swaps of neighbours only.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1,
                                     std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t wrong = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + wrong});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

bool LooksLikeFlag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' &&
         std::isdigit(static_cast<unsigned char>(word[1])) == 0;
}

// Returns the long flags of a verb (null: none) and those of every verb.
std::vector<std::string> LongFlags(const CommandLine& line, const Verb* verb) {
  std::vector<std::string> flags;
  for (const Verb* of : {verb, &line.everywhere()}) {
    if (of == nullptr) continue;
    for (std::string& name : of->LongNames()) flags.push_back(std::move(name));
  }
  return flags;
}

std::string Hint(std::string_view word, const std::vector<std::string>& known,
                 std::string_view quote) {
  const std::string meant = Nearest(word, known);
  return meant.empty() ? std::string()
                       : StrCat("; did you mean ", quote, meant, quote, "?");
}

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

std::string Nearest(std::string_view word,
                    const std::vector<std::string>& known) {
  std::string nearest;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = Distance(word, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string FirstUnknown(const CommandLine& line, const Verb* verb,
                         const std::vector<std::string>& words) {
  const std::vector<std::string> flags = LongFlags(line, verb);
  for (const std::string& word : words) {
    if (LooksLikeFlag(word)) {
      const std::string flag = word.substr(0, word.find('='));
      // A word may combine several short flags, followed by a value.
      if (flag[1] != '-' ||
          std::find(flags.begin(), flags.end(), flag) != flags.end()) {
        continue;
      }
      const std::string of = verb == nullptr ? "" : " " + verb->name();
      return StrCat(flag, ": `reprise", of, "` has no such flag",
                    Hint(flag, flags, ""));
    }
    if (verb == nullptr) {
      std::vector<std::string> verbs;
      for (const auto& known : line.verbs()) verbs.push_back(known->name());
      return StrCat(word, ": no such command", Hint(word, verbs, "`"));
    }
  }
  return {};
}

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
