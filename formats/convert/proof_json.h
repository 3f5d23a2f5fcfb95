// SPDX-License-Identifier: Apache-2.0
//
// The certificate of a plan as JSON: the value of "proof" in `reprise.plan/1`
// (docs/formats.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"
#include "reprise/v1/plan.pb.h"

namespace reprise::formats {

std::string WriteProof(const v1::Certificate& certificate);

// INVALID_ARGUMENT names the key. Does not check the proof; the verifier does.
StatusOr<v1::Certificate> ReadProof(const nlohmann::json& proof);

}  // namespace reprise::formats
