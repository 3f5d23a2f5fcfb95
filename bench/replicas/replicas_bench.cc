// SPDX-License-Identifier: Apache-2.0
//
// Daemons that share one PostgreSQL store under load, one of them killed every
// few seconds: what was lost, doubled or made twice, and what a plan request
// waits. Prints figures, and fails if anything was lost or doubled, or a plan was
// made twice.
//
//   replicas_bench REPRISED URL [seconds [agents [clients [kill-every]]]]
//
// URL names an empty database. Agents are Ingest streams that send a chunk after
// each acknowledgement; clients ask for plans of a few graphs at a few budgets.
// Both use both daemons, as behind a balancer.
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "base/str_cat.h"
#include "bench/generate/generate.h"
#include "formats/convert/graph_proto.h"
#include "reprise/v1/ingest.grpc.pb.h"
#include "reprise/v1/planner.grpc.pb.h"
#include "server/store/store.h"

namespace reprise::server {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr int kReplicas = 2;
constexpr int kFirstPort = 17170;

struct Options {
  std::string reprised;
  std::string url;
  int seconds = 60;
  int agents = 200;
  int clients = 50;
  int kill_every = 10;
};

std::atomic<bool> stop{false};

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "replicas_bench: %s\n", why.c_str());
  std::exit(1);
}

// ---- The daemons ----

class Replica {
 public:
  Replica(const Options& options, int number, std::string folder)
      : options_(options), number_(number), folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    std::ofstream(token_file()) << kToken << "\n";
    std::filesystem::permissions(token_file(),
                                 std::filesystem::perms::owner_read);
    Start();
  }
  ~Replica() { Kill(); }

  static constexpr char kToken[] =
      "0123456789abcdef0123456789abcdef0123456789abcdef";

  std::string address() const {
    return StrCat("127.0.0.1:", kFirstPort + number_);
  }
  std::string log() const { return folder_ + "/log"; }

  void Kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  void Start() {
    const std::vector<std::string> words = {options_.reprised,
                                            "--store",
                                            options_.url,
                                            "--listen",
                                            address(),
                                            "--data-dir",
                                            folder_ + "/data",
                                            "--agent-socket",
                                            folder_ + "/run/agent.sock",
                                            "--token-file",
                                            token_file(),
                                            "--log-format",
                                            "json"};
    std::vector<char*> arguments;
    for (const std::string& word : words) {
      arguments.push_back(const_cast<char*>(word.c_str()));
    }
    arguments.push_back(nullptr);
    const std::string log_file = log();
    pid_ = ::fork();
    if (pid_ != 0) return;
    if (std::freopen(log_file.c_str(), "a", stderr) == nullptr) ::_exit(126);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }

 private:
  std::string token_file() const { return folder_ + "/token"; }

  const Options& options_;
  const int number_;
  const std::string folder_;
  pid_t pid_ = 0;
};

// ---- The load ----

// A channel to all daemons, as through a balancer.
std::shared_ptr<grpc::Channel> Channel(
    const std::vector<std::unique_ptr<Replica>>& replicas) {
  std::string target = "ipv4:";
  for (const auto& replica : replicas) {
    target += StrCat(target.back() == ':' ? "" : ",", replica->address());
  }
  grpc::ChannelArguments arguments;
  arguments.SetLoadBalancingPolicyName("round_robin");
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Threads share connections otherwise, and with them one daemon's fate.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(),
                                   arguments);
}

void Authorize(grpc::ClientContext& context) {
  context.AddMetadata("authorization", StrCat("Bearer ", Replica::kToken));
  context.set_wait_for_ready(true);
}

v1::Chunk ChunkOf(uint64_t seq) {
  v1::Columns columns;
  v1::StepReport& step = *columns.add_steps();
  step.set_step(seq);
  step.set_step_ns(1'000'000);
  v1::Chunk chunk;
  chunk.set_seq(seq);
  chunk.set_t0_ns(seq);
  chunk.set_t1_ns(seq);
  chunk.set_body(columns.SerializeAsString());
  chunk.set_crc32c(Crc32c(chunk.body()));
  return chunk;
}

// Sends until it is told to stop; returns the last seq that was acknowledged.
uint64_t RunAgent(const std::shared_ptr<grpc::Channel>& channel,
                  const std::string& name) {
  const auto stub = v1::Ingest::NewStub(channel);
  uint64_t acknowledged = 0;
  while (!stop) {
    grpc::ClientContext context;
    Authorize(context);
    const auto stream = stub->Stream(&context);
    v1::Up up;
    v1::Hello& hello = *up.mutable_hello();
    hello.set_proto_version(1);
    hello.set_min_version(1);
    hello.set_session_id(StrCat("session-", name));
    hello.set_run_id(StrCat("run-", name));
    hello.set_producer_epoch(1);
    (void)stream->Write(up);
    v1::Down down;
    uint64_t next = 0;
    while (stream->Read(&down)) {
      if (down.has_welcome()) {
        if (down.welcome().resume_after() < acknowledged) {
          Die(StrCat("session ", name, ": ", acknowledged,
                     " were acknowledged, the daemon goes on after ",
                     down.welcome().resume_after()));
        }
        next = down.welcome().resume_after() + 1;
      } else if (down.has_ack()) {
        acknowledged = std::max(acknowledged, down.ack().committed());
        if (acknowledged < next) continue;
        next = acknowledged + 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      } else {
        continue;
      }
      if (stop) break;
      *up.mutable_chunk() = ChunkOf(next);
      if (!stream->Write(up)) break;
    }
    context.TryCancel();
    (void)stream->Finish();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return acknowledged;
}

struct Asked {
  std::mutex mutex;
  std::vector<double> ms;
  std::map<std::string, std::set<std::string>> plans;  // of each request
  int retried = 0;
};

void RunClient(const std::shared_ptr<grpc::Channel>& channel, int number,
               const std::vector<std::string>& graphs, Asked& asked) {
  const auto stub = v1::Planner::NewStub(channel);
  for (int turn = number; !stop; ++turn) {
    v1::PlanRequest request;
    request.set_graph_id(graphs[static_cast<size_t>(turn) % graphs.size()]);
    // A few new requests a second, most of them asked by several at once.
    const auto second = std::chrono::duration_cast<std::chrono::seconds>(
                            Clock::now().time_since_epoch())
                            .count();
    request.set_budget(StrCat("0.", 50 + second % 40, "x"));
    request.set_seed(static_cast<uint64_t>(second / 40));
    const Clock::time_point start = Clock::now();
    for (int attempt = 0; !stop; ++attempt) {
      grpc::ClientContext context;
      Authorize(context);
      const auto reader = stub->Plan(&context, request);
      v1::PlanEvent event;
      std::string plan_id;
      while (reader->Read(&event)) {
        if (event.has_plan()) plan_id = event.plan().plan_id();
      }
      const grpc::Status status = reader->Finish();
      const std::lock_guard lock(asked.mutex);
      if (!status.ok()) {
        if (status.error_code() != grpc::StatusCode::UNAVAILABLE &&
            status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) {
          Die(StrCat("plan: ", status.error_message()));
        }
        ++asked.retried;
        continue;
      }
      asked.ms.push_back(
          std::chrono::duration<double, std::milli>(Clock::now() - start)
              .count());
      asked.plans[StrCat(request.graph_id(), request.budget(), request.seed())]
          .insert(plan_id);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

std::vector<std::string> PutGraphs(
    const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = v1::Planner::NewStub(channel);
  std::vector<std::string> ids;
  for (const int ops : {100, 150, 200, 300}) {
    const auto graph = planner::Generate(
        {.kind = planner::GraphKind::kTransformer, .ops = ops});
    if (!graph.ok()) Die(graph.status().message());
    grpc::ClientContext context;
    Authorize(context);
    v1::GraphRef ref;
    const auto writer = stub->PutGraph(&context, &ref);
    v1::GraphPart part;
    part.set_data(formats::ToProto(*graph).SerializeAsString());
    writer->Write(part);
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (!status.ok()) Die(StrCat("graph: ", status.error_message()));
    ids.push_back(ref.graph_id());
  }
  return ids;
}

// ---- What is found at the end ----

int64_t Number(Store& store, const std::string& sql) {
  int64_t number = -1;
  const Status status = store.Read([&](Database& db) -> Status {
    ASSIGN_OR_RETURN(Statement select, db.Prepare(sql));
    ASSIGN_OR_RETURN(const bool row, select.Step());
    if (row) number = select.Int(0);
    return OkStatus();
  });
  if (!status.ok()) Die(status.message());
  return number;
}

// How many plans the daemons' logs say they made. A daemon writes the line once
// the plan is stored: one that dies before that leaves neither, and another
// makes the plan.
int64_t Made(const std::vector<std::unique_ptr<Replica>>& replicas) {
  int64_t lines = 0;
  for (const auto& replica : replicas) {
    std::ifstream log(replica->log());
    for (std::string line; std::getline(log, line);) {
      lines += line.find("\"event\":\"planned\"") != std::string::npos;
    }
  }
  return lines;
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto at =
      static_cast<size_t>(share * static_cast<double>(values.size()));
  return values[std::min(at, values.size() - 1)];
}

// Loads the daemons for a while; returns what the clients saw.
void Phase(const Options& options, int kill_every,
           std::vector<std::unique_ptr<Replica>>& replicas,
           const std::vector<std::string>& graphs, const char* name) {
  stop = false;
  Asked asked;
  std::vector<uint64_t> acknowledged(static_cast<size_t>(options.agents));
  std::vector<std::thread> threads;
  const auto channel = Channel(replicas);
  for (int i = 0; i < options.agents; ++i) {
    threads.emplace_back([&, i] {
      acknowledged[static_cast<size_t>(i)] =
          RunAgent(channel, StrCat(name, "-", i));
    });
  }
  for (int i = 0; i < options.clients; ++i) {
    threads.emplace_back([&, i] { RunClient(channel, i, graphs, asked); });
  }
  const auto end = Clock::now() + seconds(options.seconds);
  int kills = 0;
  auto next = Clock::now() + seconds(kill_every);
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (kill_every == 0 || Clock::now() < next) continue;
    next += seconds(kill_every);
    Replica& victim = *replicas[static_cast<size_t>(kills++ % kReplicas)];
    victim.Kill();
    victim.Start();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  int differing = 0;
  for (const auto& [request, plans] : asked.plans)
    differing += plans.size() > 1;
  uint64_t total = 0;
  auto store = Store::Open({.url = options.url});
  if (!store.ok()) Die(store.status().message());
  int64_t lost = 0;
  for (int i = 0; i < options.agents; ++i) {
    const uint64_t count = acknowledged[static_cast<size_t>(i)];
    total += count;
    // At most one more, which was stored and whose acknowledgement was not read.
    const int64_t stored =
        Number(**store, StrCat("SELECT count(*) FROM chunks WHERE session_id ="
                               " 'session-",
                               name, "-", i, "' AND seq <= ", count));
    lost += static_cast<int64_t>(count) - stored;
  }
  const int64_t made = Made(replicas);
  const int64_t answers =
      Number(**store, "SELECT count(*) FROM reprise_answers");
  std::printf(
      "%s: %d s, %d kills, %d agents, %d clients\n"
      "  chunks acknowledged %llu, of these not stored %lld\n"
      "  plan requests %zu (%zu different, %d with several answers), %d calls "
      "again; p50 %.0f ms, p95 %.0f ms, max %.0f ms\n"
      "  plans made so far %lld, for %lld different requests\n",
      name, options.seconds, kills, options.agents, options.clients,
      static_cast<unsigned long long>(total), static_cast<long long>(lost),
      asked.ms.size(), asked.plans.size(), differing, asked.retried,
      Percentile(asked.ms, 0.5), Percentile(asked.ms, 0.95),
      Percentile(asked.ms, 1), static_cast<long long>(made),
      static_cast<long long>(answers));
  std::fflush(stdout);
  // Each chunk has one step report: rows that were doubled would be seen here.
  const int64_t doubled =
      Number(**store, "SELECT count(*) FROM steps") -
      Number(**store,
             "SELECT count(*) FROM (SELECT DISTINCT session_id, step"
             " FROM steps) AS distinct_steps");
  std::printf("  step reports doubled %lld\n", static_cast<long long>(doubled));
  if (lost != 0 || doubled != 0 || differing != 0 || made > answers) {
    std::exit(1);
  }
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    Die("usage: replicas_bench REPRISED URL [seconds [agents [clients "
        "[kill-every]]]]");
  }
  Options options{.reprised = argv[1], .url = argv[2]};
  int* const numbers[] = {&options.seconds, &options.agents, &options.clients,
                          &options.kill_every};
  for (int i = 3; i < std::min(argc, 7); ++i) {
    *numbers[i - 3] = std::atoi(argv[i]);
  }
  std::string folder =
      (std::filesystem::temp_directory_path() / "replicas-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) Die("no temporary folder");
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int i = 0; i < kReplicas; ++i) {
    replicas.push_back(
        std::make_unique<Replica>(options, i, StrCat(folder, "/", i)));
  }
  const std::vector<std::string> graphs = PutGraphs(Channel(replicas));
  Phase(options, 0, replicas, graphs, "undisturbed");
  Phase(options, options.kill_every, replicas, graphs, "disturbed");
  replicas.clear();
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace reprise::server

int main(int argc, char** argv) { return reprise::server::Main(argc, argv); }
