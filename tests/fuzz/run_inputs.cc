// SPDX-License-Identifier: Apache-2.0
//
// Runs a harness over files and folders and over mutations of them, so that the
// seed corpus is an ordinary test with any compiler.
//
//   run [--mutations N] PATH...
//
// A mutation flips, inserts, removes, copies or splices bytes, chosen by
// SplitMix64, so that every run has the same inputs. An input that crashes the
// process is saved as crash-input in the current folder.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "planner/model/random.h"
#include "tests/fuzz/harness.h"

namespace {

namespace fs = std::filesystem;
using Input = std::vector<uint8_t>;
using reprise::planner::Random;

Input Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Input(std::istreambuf_iterator<char>(in), {});
}

// The input that is running, for the crash handler.
const Input* g_running = nullptr;

void KeepInput(int signal) {
  const int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0 && write(fd, g_running->data(), g_running->size()) >= 0) {
    constexpr char kSaid[] = "the input is in ./crash-input\n";
    (void)!write(STDERR_FILENO, kSaid, sizeof(kSaid) - 1);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Run(const Input& input) {
  g_running = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

size_t Position(Random& random, const Input& input) {
  return input.empty() ? 0
                       : static_cast<size_t>(
                             random.Below(static_cast<int64_t>(input.size())));
}

Input Mutated(Random& random, const std::vector<Input>& seeds) {
  const auto pick = [&]() -> const Input& {
    return seeds[static_cast<size_t>(
        random.Below(static_cast<int64_t>(seeds.size())))];
  };
  Input input = pick();
  const int changes = 1 + random.Below(6);
  for (int i = 0; i < changes; ++i) {
    const size_t at = Position(random, input);
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random.Below(6)) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<uint8_t>(random.Next());
        break;
      case 1:
        input.insert(place, static_cast<uint8_t>(random.Next()));
        break;
      case 2:
        if (!input.empty()) input.erase(place);
        break;
      case 3:
        input.resize(at);
        break;
      case 4: {  // repeats a piece of itself
        const size_t length =
            std::min<size_t>(input.size() - at, 1 + random.Below(16));
        const Input piece(place, place + static_cast<std::ptrdiff_t>(length));
        const size_t to = Position(random, input);
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(to),
                     piece.begin(), piece.end());
        break;
      }
      default: {  // appends the tail of another input
        const Input& other = pick();
        const size_t from = Position(random, other);
        input.resize(at);
        input.insert(input.end(),
                     other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.end());
      }
    }
    if (input.size() > (1 << 16)) input.resize(1 << 16);
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGBUS}) {
    std::signal(signal, KeepInput);
  }
  int mutations = 0;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) {
      mutations = std::atoi(argv[++i]);
    } else if (fs::is_directory(argv[i])) {
      for (const auto& entry : fs::directory_iterator(argv[i])) {
        files.push_back(entry.path());
      }
    } else {
      files.emplace_back(argv[i]);
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> seeds;
  for (const fs::path& file : files) {
    seeds.push_back(Read(file));
    Run(seeds.back());
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "no input; name files or folders\n");
    return 2;
  }
  Random random(1);
  for (int i = 0; i < mutations; ++i) Run(Mutated(random, seeds));
  std::printf("%zu inputs, %d mutations\n", seeds.size(), mutations);
  return 0;
}
