// SPDX-License-Identifier: Apache-2.0
#include "server/collect/collector.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "base/str_cat.h"
#include "formats/convert/digest.h"
#include "server/collect/control_socket.h"
#include "server/collect/drain_loop.h"
#include "server/collect/forwarder.h"
#include "server/collect/plan_relay.h"
#include "server/collect/spool.h"

namespace reprise::server {

namespace {

constexpr std::chrono::milliseconds kDrainPoll{2};

// Returns the identity of the file at a path; empty if there is none.
MemfdIdentity FileAt(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return {};
  return {.device = status.st_dev, .inode = status.st_ino};
}

// Order matters: the loop's thread uses forwarder and relay, and their threads
// post to the loop. So the loop's thread must end first, and its object be
// destroyed last.
class RunningCollector final : public Collector {
 public:
  RunningCollector(CollectorOptions options, Fd listener, Spool spool)
      : socket_path_(options.agent_socket),
        socket_file_(FileAt(socket_path_)),
        channel_(options.channel),
        loop_(std::move(options), std::move(listener), std::move(spool)) {}

  ~RunningCollector() override {
    if (forwarder_) forwarder_->Stop();
    loop_.Stop();
    relay_.reset();
    forwarder_.reset();
    RemoveSocket();
  }

  Status Start(std::unique_ptr<ChunkSource> spool) {
    relay_ = std::make_unique<PlanRelay>(channel_, [this](PlanAnswer answer) {
      loop_.Answered(std::move(answer));
    });
    forwarder_ = std::make_unique<Forwarder>(
        channel_, std::move(spool), "server",
        ForwarderEvents{
            .acked = [this](int64_t key,
                            uint64_t seq) { loop_.Acked(key, seq); },
            .finished = [this](int64_t key) { loop_.Finished(key); },
            .epoch_taken = [this](int64_t key) { loop_.EpochTaken(key); },
            .asked =
                [this](int64_t key, const v1::Down& down) {
                  if (down.has_plan()) Replan(key, down.plan());
                  if (down.has_window()) loop_.OpenWindow(key, down.window());
                }});
    return loop_.Start(*forwarder_, *relay_);
  }

  std::vector<AgentSnapshot> Agents() const override { return loop_.Agents(); }
  int ConnectedAgents() const override { return loop_.ConnectedAgents(); }
  int64_t spool_bytes() const override { return loop_.spool_bytes(); }

  CollectorStats stats() const override {
    CollectorStats stats = loop_.stats();
    const Forwarder::Counts counts = forwarder_->counts();
    stats.chunks_acked = counts.acked;
    stats.chunks_resent = counts.resent;
    stats.chunks_lost = counts.lost;
    return stats;
  }

  std::string degraded() const override {
    const std::string spool = loop_.trouble();
    return spool.empty() ? forwarder_->trouble() : spool;
  }

  bool Retire() override {
    if (!loop_.Retire()) return false;
    RemoveSocket();
    return true;
  }

  Status Drain(std::chrono::milliseconds deadline) override {
    const auto until = std::chrono::steady_clock::now() + deadline;
    RemoveSocket();
    loop_.BeginDrain();
    while (!loop_.drained() || !forwarder_->AllTaken()) {
      if (std::chrono::steady_clock::now() >= until) {
        return DeadlineExceeded(
            StrCat("collector: ", loop_.spool_bytes(),
                   " bytes stay in the spool for the next start"));
      }
      std::this_thread::sleep_for(kDrainPoll);
    }
    return OkStatus();
  }

 private:
  // Handles Down.plan: a plan that no agent requested.
  void Replan(int64_t key, const v1::PlanRef& reference) {
    auto graph_id = formats::ParseHexId(reference.graph_id());
    auto encoded = EncodePlan(reference.plan());
    if (!graph_id.ok() || !encoded.ok() || !reference.plan().feasible()) {
      return;
    }
    PlanAnswer answer;
    answer.session = key;
    answer.replan = true;
    answer.wish.graph_id = *graph_id;
    // Of a server of before: 0, and the graph says whose answer it is.
    const auto replaces = formats::ParseHexId(reference.replaces());
    answer.replaces = replaces.ok() ? *replaces : 0;
    answer.plan = std::make_shared<const EncodedPlan>(*std::move(encoded));
    loop_.Answered(std::move(answer));
  }

  // Removes the socket, unless another process has put a new one there.
  void RemoveSocket() {
    if (socket_file_.inode != 0 && FileAt(socket_path_) == socket_file_) {
      unlink(socket_path_.c_str());
    }
    socket_file_ = {};
  }

  const std::string socket_path_;
  MemfdIdentity socket_file_;
  const std::shared_ptr<grpc::Channel> channel_;
  DrainLoop loop_;
  std::unique_ptr<PlanRelay> relay_;
  std::unique_ptr<Forwarder> forwarder_;
};

}  // namespace

StatusOr<std::unique_ptr<Collector>> Collector::Start(
    CollectorOptions options) {
  if (options.channel == nullptr) {
    return InvalidArgument("collector: needs a channel to the server");
  }
  ASSIGN_OR_RETURN(Spool spool, Spool::Open(options.spool_path));
  ASSIGN_OR_RETURN(std::unique_ptr<SpoolReader> reader,
                   SpoolReader::Open(options.spool_path));
  ASSIGN_OR_RETURN(Fd listener, ListenForAgents(options.agent_socket));
  auto collector = std::make_unique<RunningCollector>(
      std::move(options), std::move(listener), std::move(spool));
  RETURN_IF_ERROR(collector->Start(std::move(reader)));
  return std::unique_ptr<Collector>(std::move(collector));
}

}  // namespace reprise::server
