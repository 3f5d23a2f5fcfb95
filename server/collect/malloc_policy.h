// SPDX-License-Identifier: Apache-2.0
//
// What malloc does with the buffers of chunks, some 120 KiB each, that come and
// go thousands of times a second. By default it gives such a buffer back to the
// kernel when it is freed and has the next one's pages zeroed again: a fifth of
// all that a collector did.
#pragma once

#include <malloc.h>

namespace reprise::server {

// For the whole process; call before there are threads. Each arena may keep
// 8 MiB that nobody uses.
inline void KeepFreedBuffers() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 8 << 20);
  mallopt(M_TOP_PAD, 256 << 10);
#endif
}

}  // namespace reprise::server
