// What CUPTI calls: buffers, the clock, and a subscriber that wants nothing.
//
// On CUPTI's threads, inside a flush, in a forked child, after the session or
// the window has ended, in a process that is ending: at any time. They take no
// lock but that of the names, call nothing of CUPTI's but its iterator and its
// count of drops, and find an agent, a ring, or neither.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace reprise::profiler {

void OnBufferRequested(uint8_t **buffer, size_t *size, size_t *max_records);
void OnBufferCompleted(void *context, uint32_t stream, uint8_t *buffer,
                       size_t size, size_t valid);

// CLOCK_MONOTONIC in a window; else what CUPTI would answer by itself, as it
// cannot be told to forget a clock.
uint64_t CuptiClock();

void OnCuptiCallback(void *userdata, uint32_t domain, uint32_t cbid,
                     const void *data);

}  // namespace reprise::profiler
