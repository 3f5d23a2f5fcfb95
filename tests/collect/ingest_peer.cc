// SPDX-License-Identifier: Apache-2.0
#include "tests/collect/ingest_peer.h"

#include <cstdlib>
#include <utility>

#include "base/crc32c.h"

namespace reprise::server {

IngestPeer::IngestPeer() { Listen(); }

IngestPeer::~IngestPeer() { Suspend(); }

void IngestPeer::Listen() {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(static_cast<v1::Ingest::Service*>(this));
  builder.RegisterService(static_cast<v1::Planner::Service*>(this));
  server_ = builder.BuildAndStart();
  if (!server_) std::abort();
  address_ = "127.0.0.1:" + std::to_string(port);
}

void IngestPeer::Suspend() {
  if (!server_) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

void IngestPeer::Resume() { Listen(); }

std::shared_ptr<grpc::Channel> IngestPeer::Channel() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(),
                                   arguments);
}

Received IngestPeer::Of(const std::string& session_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session_id);
  return found == sessions_.end() ? Received() : found->second;
}

std::vector<std::string> IngestPeer::Sessions() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  return ids;
}

void IngestPeer::Forget() {
  const std::lock_guard lock(mutex_);
  sessions_.clear();
}

bool IngestPeer::PushPlan(const std::string& session_id,
                          const v1::PlanRef& plan) {
  const std::lock_guard lock(mutex_);
  const auto found = writers_.find(session_id);
  if (found == writers_.end()) return false;
  v1::Down down;
  *down.mutable_plan() = plan;
  return found->second->Write(down);
}

grpc::Status IngestPeer::Stream(grpc::ServerContext*, Writer* stream) {
  std::string id;
  uint64_t epoch = 0;
  grpc::Status status;
  for (v1::Up up; status.ok() && stream->Read(&up);) {
    const std::lock_guard lock(mutex_);
    v1::Down answer;
    if (up.has_hello()) {
      id = up.hello().session_id();
      epoch = up.hello().producer_epoch();
      Received& session = sessions_[id];
      session.info = up.hello().info();
      session.run_id = up.hello().run_id();
      session.names.clear();
      ++session.streams;
      writers_[id] = stream;
      v1::Welcome& welcome = *answer.mutable_welcome();
      welcome.set_proto_version(1);
      welcome.set_resume_after(session.committed[epoch]);
      welcome.set_max_inflight(max_inflight);
      welcome.set_max_chunk_bytes(1 << 20);
    } else if (id.empty()) {
      status = {grpc::StatusCode::INVALID_ARGUMENT, "hello comes first"};
    } else if (up.has_defs()) {
      for (const v1::NameDef& name : up.defs().names()) {
        sessions_[id].names[name.id()] = name.text();
      }
    } else if (up.has_chunk()) {
      if (deaf) continue;
      status = Take(up.chunk(), sessions_[id], epoch, answer);
    } else if (up.has_lost()) {
      Received& session = sessions_[id];
      uint64_t& committed = session.committed[epoch];
      if (up.lost().from() <= committed + 1 && up.lost().to() > committed) {
        session.lost.push_back(up.lost());
        committed = up.lost().to();
      }
      answer.mutable_ack()->set_committed(committed);
    } else if (up.has_bye()) {
      sessions_[id].byes.push_back(up.bye());
    }
    if (status.ok() && answer.m_case() != v1::Down::M_NOT_SET) {
      stream->Write(answer);
    }
  }
  const std::lock_guard lock(mutex_);
  if (writers_[id] == stream) writers_.erase(id);
  return status;
}

grpc::Status IngestPeer::Take(const v1::Chunk& chunk, Received& session,
                              uint64_t epoch, v1::Down& answer) {
  const auto invalid = [](const char* why) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, why);
  };
  uint64_t& committed = session.committed[epoch];
  if (chunk.seq() > committed + 1) {
    answer.mutable_resend()->set_expected(committed + 1);
    return grpc::Status::OK;
  }
  answer.mutable_ack()->set_committed(committed);
  if (chunk.seq() <= committed) {
    ++session.repeated_chunks;
    return grpc::Status::OK;
  }
  v1::Columns columns;
  if (Crc32cPortable(chunk.body()) != chunk.crc32c()) {
    return invalid("crc");
  }
  if (!columns.ParseFromString(chunk.body())) return invalid("columns");
  const auto count = static_cast<int>(chunk.count());
  if (count > 4096 || columns.kind_size() != count ||
      columns.start_ns_size() != count) {
    return invalid("count");
  }
  for (int i = 0; i < columns.ptr_size(); ++i) {
    if (poison != 0 && columns.ptr(i) == poison) return invalid("poison");
  }
  for (int i = 0; i < count; ++i) {
    ++session.kinds[columns.kind(i)];
    if (columns.kind(i) == v1::RECORD_KIND_ALLOC && !forgetful) {
      session.addresses.push_back(columns.ptr_size() ? columns.ptr(i) : 0);
    }
    if (columns.kind(i) == v1::RECORD_KIND_LOSS) {
      session.losses.push_back(static_cast<uint64_t>(columns.bytes(i)));
    }
    if (columns.name_size() != 0 && columns.name(i) != 0 &&
        !session.names.contains(columns.name(i))) {
      ++session.unnamed;
    }
  }
  for (const auto& step : columns.steps()) session.steps.push_back(step);
  for (const auto& check : columns.checks()) session.checks.push_back(check);
  for (const auto& state : columns.states()) session.states.push_back(state);
  for (const auto& moment : columns.moments()) {
    session.moments.push_back(moment);
  }
  session.dropped_before += chunk.dropped_before();
  ++session.chunks;
  committed = chunk.seq();
  answer.mutable_ack()->set_committed(committed);
  return grpc::Status::OK;
}

grpc::Status IngestPeer::PutGraph(grpc::ServerContext*,
                                  grpc::ServerReader<v1::GraphPart>* reader,
                                  v1::GraphRef* reference) {
  std::string bytes, graph_id;
  for (v1::GraphPart part; reader->Read(&part);) {
    if (part.data().size() > 1 << 20) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "part above 1 MiB"};
    }
    if (!part.graph_id().empty()) graph_id = part.graph_id();
    bytes += part.data();
  }
  const std::lock_guard lock(mutex_);
  if (!graphs_[graph_id].ParseFromString(bytes)) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "no step graph"};
  }
  reference->set_graph_id(graph_id);
  return grpc::Status::OK;
}

grpc::Status IngestPeer::Plan(grpc::ServerContext*,
                              const v1::PlanRequest* request,
                              grpc::ServerWriter<v1::PlanEvent>* writer) {
  ++plans_asked;
  v1::StepGraph graph;
  {
    const std::lock_guard lock(mutex_);
    const auto found = graphs_.find(request->graph_id());
    if (found == graphs_.end()) {
      return {grpc::StatusCode::NOT_FOUND, "no such graph"};
    }
    graph = found->second;
  }
  v1::PlanEvent event;
  event.mutable_progress()->set_overhead(-1);
  writer->Write(event);
  grpc::Status status = planner(*request, graph, event.mutable_plan());
  if (status.ok()) writer->Write(event);
  return status;
}

}  // namespace reprise::server
