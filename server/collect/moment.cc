// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/str_cat.h"
#include "formats/convert/digest.h"
#include "formats/convert/json_fields.h"
#include "server/collect/agent_session.h"
#include "server/collect/columns_writer.h"

namespace reprise::server {

namespace {

Status CheckBytes(std::string_view field, int64_t value) {
  if (value >= 0 && static_cast<uint64_t>(value) <= kLargestValue) {
    return OkStatus();
  }
  return InvalidArgument(
      StrCat("moment.", field, ": no amount of memory, got ", value));
}

Status CheckId(std::string_view field, const std::string& id) {
  if (id.empty() || formats::ParseHexId(id).ok()) return OkStatus();
  return InvalidArgument(
      StrCat("moment.", field, ": must be 16 hex digits or empty"));
}

void CutText(std::string& text) { text = ValidUtf8(text, kMaxHeldText); }

Status CheckStorages(v1::Moment& moment) {
  for (int i = 0; i < moment.storages_size(); ++i) {
    v1::HeldStorage& held = *moment.mutable_storages(i);
    RETURN_IF_ERROR(
        CheckBytes(StrCat("storages[", i, "].bytes"), held.bytes()));
    RETURN_IF_ERROR(CheckBytes(StrCat("storages[", i, "].block_bytes"),
                               held.block_bytes()));
    CutText(*held.mutable_made_by());
    CutText(*held.mutable_module());
    CutText(*held.mutable_name());
    if (!v1::Category_IsValid(held.category())) {
      held.set_category(v1::CATEGORY_UNKNOWN);
    }
  }
  int64_t more_bytes = moment.more_bytes();
  for (int i = kMaxHeldStorages; i < moment.storages_size(); ++i) {
    more_bytes = std::min(more_bytes + moment.storages(i).bytes(),
                          static_cast<int64_t>(kLargestValue));
  }
  const int over = std::max(moment.storages_size() - kMaxHeldStorages, 0);
  if (over > 0) {
    moment.set_more_bytes(more_bytes);
    moment.set_more_storages(
        std::min(moment.more_storages(),
                 kLargestValue - static_cast<uint64_t>(over)) +
        static_cast<uint64_t>(over));
    moment.mutable_storages()->DeleteSubrange(kMaxHeldStorages, over);
  }
  return OkStatus();
}

}  // namespace

v1::Moment MomentOf(const reprise_place& place) {
  v1::Moment moment;
  moment.set_reason(v1::MOMENT_REASON_KILLED);
  moment.set_step(std::min(place.step, kLargestValue));
  if (Fits({place.step_ns})) {
    moment.set_at_ns(static_cast<int64_t>(place.step_ns));
  }
  if (place.phase >= v1::PHASE_FORWARD && place.phase <= v1::PHASE_OPTIMIZER) {
    moment.set_phase(static_cast<v1::Phase>(place.phase));
  }
  if (place.graph_id == 0) return moment;
  moment.set_graph_id(formats::HexId(place.graph_id));
  if (place.plan_id != 0) moment.set_plan_id(formats::HexId(place.plan_id));
  if (place.op > 0 && place.op <= UINT32_MAX) {
    moment.set_op(static_cast<uint32_t>(place.op - 1));
  }
  return moment;
}

StatusOr<v1::Moment> ParseMoment(std::string_view json) {
  v1::Moment moment;
  const Status read = formats::ReadProto3(json, moment);
  if (!read.ok()) {
    return InvalidArgument(StrCat("moment: is none in JSON: ", read.message()));
  }
  // A job cannot report that it was killed.
  if (moment.reason() != v1::MOMENT_REASON_OUT_OF_MEMORY) {
    return InvalidArgument("moment.reason: must be out of memory");
  }
  if (!Fits({moment.step(), moment.more_storages()}) || moment.at_ns() < 0) {
    return InvalidArgument("moment.step: no job gets that far");
  }
  RETURN_IF_ERROR(CheckId("graph_id", moment.graph_id()));
  RETURN_IF_ERROR(CheckId("plan_id", moment.plan_id()));
  RETURN_IF_ERROR(CheckBytes("live_bytes", moment.live_bytes()));
  RETURN_IF_ERROR(CheckBytes("more_bytes", moment.more_bytes()));
  RETURN_IF_ERROR(CheckBytes("asked_bytes", moment.asked_bytes()));
  RETURN_IF_ERROR(CheckBytes("free_bytes", moment.free_bytes()));
  RETURN_IF_ERROR(CheckBytes("total_bytes", moment.total_bytes()));
  if (!v1::Phase_IsValid(moment.phase())) {
    moment.clear_phase();
  }
  CutText(*moment.mutable_module());
  RETURN_IF_ERROR(CheckStorages(moment));
  return moment;
}

}  // namespace reprise::server
