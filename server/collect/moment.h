// SPDX-License-Identifier: Apache-2.0
//
// Moments: where a job was, and what it held, when it was killed or ran out of
// memory. A killed job's is made from the words it left in its ring; that of an
// exception comes from the job as JSON. Both are hostile until they have been
// here.
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
// Waiting to be stored, per session; and ever, so that a job that runs out of
// memory in every step does not fill the store.
inline constexpr size_t kMaxMomentsWaiting = 8;
inline constexpr uint32_t kMaxMomentsEver = 64;

// The moment of a killed job. What cannot be is left out.
v1::Moment MomentOf(const reprise_place& place);

// INVALID_ARGUMENT: it is no moment of a job that goes on, in JSON, or larger
// than allowed; names the field. Texts are cut, storages beyond the limit are
// added to `more_storages`.
StatusOr<v1::Moment> ParseMoment(std::string_view json);

}  // namespace reprise::server
