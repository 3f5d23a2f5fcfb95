// SPDX-License-Identifier: Apache-2.0
#include "server/ingest/ingest_service.h"

#include "server/ingest/ingest_call.h"

namespace reprise::server {

std::shared_ptr<IngestCall> IngestRegistry::Enter(
    const std::string& session_id, std::shared_ptr<IngestCall> call) {
  const std::lock_guard lock(mutex_);
  std::swap(calls_[session_id], call);
  return call;
}

void IngestRegistry::Leave(const std::string& session_id,
                           const IngestCall* call) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(session_id);
  if (found != calls_.end() && found->second.get() == call) {
    calls_.erase(found);
  }
}

std::vector<std::shared_ptr<IngestCall>> IngestRegistry::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<IngestCall>> all;
  for (const auto& [id, call] : calls_) all.push_back(call);
  return all;
}

std::shared_ptr<IngestCall> IngestRegistry::Find(
    const std::string& session_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(session_id);
  return found == calls_.end() ? nullptr : found->second;
}

grpc::ServerBidiReactor<v1::Up, v1::Down>* IngestService::Stream(
    grpc::CallbackServerContext* context) {
  return IngestCall::Start(committer_, registry_, metrics_, admit_(*context));
}

int IngestService::PushPlan(const std::string& run_id, const v1::Plan& plan,
                            const std::string& replaces) {
  v1::Down down;
  v1::PlanRef& ref = *down.mutable_plan();
  ref.set_plan_id(plan.plan_id());
  ref.set_graph_id(plan.graph_id());
  ref.set_replaces(replaces);
  *ref.mutable_plan() = plan;
  return SendToAll(run_id, down);
}

int IngestService::OpenWindow(const std::string& run_id,
                              const v1::OpenWindow& window) {
  v1::Down down;
  *down.mutable_window() = window;
  return SendToAll(run_id, down);
}

int IngestService::SendToAll(const std::string& run_id, const v1::Down& down) {
  int sent = 0;
  for (const std::shared_ptr<IngestCall>& call : registry_.All()) {
    if (call->run_id() != run_id) continue;
    call->Send(down);
    ++sent;
  }
  return sent;
}

bool IngestService::Relay(const std::string& session_id, const v1::Down& down) {
  const std::shared_ptr<IngestCall> call = registry_.Find(session_id);
  if (call == nullptr) return false;
  call->Send(down);
  return true;
}

void IngestService::DrainAll() {
  v1::Down down;
  down.mutable_drain();
  for (const std::shared_ptr<IngestCall>& call : registry_.All()) {
    call->Send(down);
  }
}

}  // namespace reprise::server
