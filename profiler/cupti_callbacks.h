// The callbacks that CUPTI gets: buffers, the clock, and a subscriber that does
// nothing.
//
// CUPTI may call them at any time: on its own threads, inside a flush, in a
// forked child, after the session or the window has ended, while the process
// exits. They take no lock but that of the names, call nothing of CUPTI but its
// iterator and its count of dropped records, and must work with or without an
// agent and a ring.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

void OnBufferRequested(uint8_t **buffer, size_t *size, size_t *max_records);
void OnBufferCompleted(void *context, uint32_t stream, uint8_t *buffer,
                       size_t size, size_t valid);

// Returns CLOCK_MONOTONIC, whether or not a window is open. CUPTI turns the
// device's times into the host's by interpolating between pairs of both, and
// may take a pair at any time: one clock for all of them, or kernels of the
// next window would lie anywhere
// (CuptiTest.KernelsOfLaterWindowsLieWhereTheyRan).
uint64_t CuptiClock();

void OnCuptiCallback(void *userdata, uint32_t domain, uint32_t cbid,
                     const void *data);

}  // namespace reprise::profiler
