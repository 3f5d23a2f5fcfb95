// SPDX-License-Identifier: Apache-2.0
//
// Moments: what a job was doing, and what it held in memory, when it was killed
// or ran out of memory. That of a killed job is made from the words it left in
// its ring; that of an out-of-memory exception comes from the job as JSON. Both
// are untrusted until they are checked here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "profiler/include/reprise_wire.h"
#include "reprise/v1/ingest.pb.h"

namespace reprise::server {

inline constexpr size_t kMaxMomentBytes = 1 << 20;
inline constexpr int kMaxHeldStorages = 1024;
inline constexpr size_t kMaxHeldText = 256;
// Moments waiting to be stored, and in total, per session: a job that runs out
// of memory in every step must not fill the store.
inline constexpr size_t kMaxMomentsWaiting = 8;
inline constexpr uint32_t kMaxMomentsEver = 64;

// Returns the moment of a killed job. Impossible values are omitted.
v1::Moment MomentOf(const reprise_place& place);

// Parses the moment of a job that is still running. INVALID_ARGUMENT, naming
// the field: it is not such a moment in JSON, or larger than allowed. Long
// texts are truncated; storages beyond the limit are counted in
// `more_storages`.
StatusOr<v1::Moment> ParseMoment(std::string_view json);

}  // namespace reprise::server
