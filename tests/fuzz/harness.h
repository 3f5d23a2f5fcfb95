// SPDX-License-Identifier: Apache-2.0
//
// Declarations that every harness implements and both kinds of main call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Must return 0 for every input; a violated property ends the process by
// REPRISE_FUZZ_CHECK.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Like assert, but also in release builds.
#define REPRISE_FUZZ_CHECK(condition)                                   \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, \
                   #condition);                                         \
      std::abort();                                                     \
    }                                                                   \
  } while (false)
