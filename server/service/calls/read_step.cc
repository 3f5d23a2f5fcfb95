// SPDX-License-Identifier: Apache-2.0
//
// ReadStep: the records of the newest traced step, chunk by chunk as they are
// stored, limited to the step. Each part contains the names that it uses first.
#include <algorithm>
#include <deque>
#include <unordered_set>

#include "server/service/calls/handlers.h"
#include "server/service/memory/step_cache.h"
#include "server/store/chunk_rows.h"
#include "server/store/run_rows.h"

namespace reprise::server {

namespace {

// More than any real step has; earlier chunks are omitted.
constexpr size_t kMostChunksOfAStep = 8192;

bool IsShown(uint32_t kind) {
  switch (kind) {
    case v1::RECORD_KIND_ALLOC:
    case v1::RECORD_KIND_OP_BEGIN:
    case v1::RECORD_KIND_OP_END:
    case v1::RECORD_KIND_KERNEL:
    case v1::RECORD_KIND_COPY:
    case v1::RECORD_KIND_SET:
      return true;
    default:
      return false;
  }
}

// Copies the records of a chunk that belong to the step.
void CutColumns(const v1::Columns& from, const RecordedStep& step,
                v1::Columns& to) {
  const int count = std::min(from.kind_size(), from.start_ns_size());
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<int64_t>(from.start_ns(i));
    if (at < step.begin_ns || at > step.end_ns || !IsShown(from.kind(i))) {
      continue;
    }
    to.add_start_ns(from.start_ns(i));
    to.add_dur_ns(CellOf(from.dur_ns(), i));
    to.add_kind(from.kind(i));
    to.add_op(CellOf(from.op(), i));
    to.add_name(CellOf(from.name(), i));
    to.add_stream(CellOf(from.stream(), i));
    to.add_device(CellOf(from.device(), i));
    to.add_bytes(CellOf(from.bytes(), i));
    to.add_ptr(CellOf(from.ptr(), i));
    to.add_thread(CellOf(from.thread(), i));
    to.add_extra(CellOf(from.extra(), i));
  }
}

class StepReader {
 public:
  StepReader(Services& services, const v1::ReadStepRequest& request, Call& call)
      : services_(services), request_(request), call_(call) {}

  Status Run() {
    return services_.store.Read([&](Database& db) -> Status {
      ASSIGN_OR_RETURN(const std::string run_id,
                       ResolveRunId(db, request_.run_id()));
      ASSIGN_OR_RETURN(held_,
                       services_.steps.Get(db, run_id, request_.planned()));
      RETURN_IF_ERROR(LoadChunks(db));
      return SendAll();
    });
  }

 private:
  Status LoadChunks(Database& db) {
    return VisitChunksBackwards(
        db, held_->session_id, held_->end_ns,
        [&](int64_t t1_ns, std::string_view body) -> StatusOr<bool> {
          chunks_.emplace_front(body);
          return t1_ns >= held_->begin_ns &&
                 chunks_.size() < kMostChunksOfAStep;
        });
  }

  Status SendAll() {
    const RecordedStep& step = *held_;
    v1::StepPart head;
    head.set_step(step.step);
    head.set_begin_ns(step.begin_ns);
    head.set_end_ns(step.end_ns);
    head.set_baseline_bytes(step.curve.bytes(step.first));
    head.set_incomplete(step.incomplete);
    call_.Send(head);
    for (std::string& body : chunks_) {
      v1::Columns columns;
      if (!columns.ParseFromString(body)) {
        return Status(Code::kDataLoss, "a stored chunk is damaged");
      }
      std::string().swap(body);
      v1::StepPart part;
      CutColumns(columns, step, *part.mutable_records());
      if (part.records().kind_size() == 0) continue;
      for (const uint32_t id : part.records().name()) {
        if (step.Text(id).empty() || !sent_.insert(id).second) continue;
        v1::NameDef& name = *part.add_names();
        name.set_id(id);
        name.set_text(step.Text(id));
      }
      call_.Send(part);
      if (call_.cancelled()) return OkStatus();
    }
    return OkStatus();
  }

  Services& services_;
  const v1::ReadStepRequest& request_;
  Call& call_;
  std::shared_ptr<const RecordedStep> held_;
  std::deque<std::string> chunks_;  // oldest first
  std::unordered_set<uint32_t> sent_;
};

}  // namespace

Status ReadStep(Services& services, const v1::ReadStepRequest& request,
                Call& call) {
  return StepReader(services, request, call).Run();
}

}  // namespace reprise::server
