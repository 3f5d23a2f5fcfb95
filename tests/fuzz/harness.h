// SPDX-License-Identifier: Apache-2.0
//
// What every harness defines and both of its mains call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Must return 0 on every input; what should not be ends the process by
// REPRISE_FUZZ_CHECK.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Unlike assert also in release builds.
#define REPRISE_FUZZ_CHECK(condition)                                   \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, \
                   #condition);                                         \
      std::abort();                                                     \
    }                                                                   \
  } while (false)
