// SPDX-License-Identifier: Apache-2.0
//
// REPRISE_ENTRY is an entry point of the engine: the function itself, but in a
// build for tests, where REPRISE_INJECT names the header that makes it fail.
#ifndef REPRISE_TORCH_COMPILED_INJECT_H_
#define REPRISE_TORCH_COMPILED_INJECT_H_

#ifdef REPRISE_INJECT
#include REPRISE_INJECT
#else
#define REPRISE_ENTRY(name, function) function
#endif

#endif  // REPRISE_TORCH_COMPILED_INJECT_H_
