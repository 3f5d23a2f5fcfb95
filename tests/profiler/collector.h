// The collector's side of the agent's protocol, for tests: it speaks
// reprise_wire.h over a real SEQPACKET socket and reads the real ring.
//
// It serves on its own thread. What it receives is kept as one `Session` per
// session id; sessions outlive connections and the collectors of one Shelf, so
// that a second collector on the same path acts as a restarted daemon.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "profiler/include/reprise_wire.h"

namespace reprise::profiler::testing {

struct GraphMessage {
  uint64_t id = 0;
  std::string json, budget, capabilities;
  uint64_t static_bytes = 0, device_bytes = 0, device_free_bytes = 0;
  uint64_t reserve_bytes = 0, request_id = 0;
  size_t fixed_bytes = 0;  // sent of the fixed part
};

struct Session {
  reprise_msg_hello hello = {};
  std::string labels;
  int hellos = 0;
  std::map<uint32_t, std::string> names;
  std::string capabilities;
  std::vector<GraphMessage> graphs;
  std::vector<std::string> snapshots;
  std::vector<reprise_msg_bye> byes;
  std::vector<reprise_slot> records;
  int closed = 0;                // connections that ended
  bool names_came_first = true;  // every name arrived before its first record

  uint64_t Count(uint16_t kind) const;
  uint64_t Lost() const;  // sum of the counts of LOSS records
};

// Sessions by id, shared by the collectors of one test.
struct Shelf {
  std::mutex mutex;
  std::map<std::string, Session> sessions;
};

class Collector {
 public:
  struct Options {
    std::string refuse = "";   // answer HELLO with this sentence
    bool silent = false;       // accept, never answer
    bool drain = true;         // read the rings
    bool keep_records = true;  // else only drain them
    bool receive = true;       // read the sockets after HELLO
    std::string garbage = "";  // answer HELLO with these bytes
  };

  // Listens at the socket `path`; replaces a stale socket.
  Collector(std::string path, std::shared_ptr<Shelf> shelf);
  Collector(std::string path, std::shared_ptr<Shelf> shelf, Options options);
  ~Collector();  // closes everything at once, as if the daemon were killed

  void SetDrain(bool drain) { drain_ = drain; }
  void SetReceive(bool receive) { receive_ = receive; }

  // Sends to every connected agent. The caller keeps ownership of `fds`.
  void Send(uint16_t type, const std::string& body, std::vector<int> fds = {});
  void SendPacket(const std::string& bytes);
  void CloseConnections();

  // Polls the sessions until `done` returns true. Returns false after 30 s.
  bool WaitFor(const std::function<bool(const Shelf&)>& done);
  // The same for the only session.
  bool WaitForSession(const std::function<bool(const Session&)>& done);

  Session OnlySession();

 private:
  struct Peer;
  void Serve();
  void Accept();
  bool ReceiveFrom(Peer* peer);  // false: connection closed
  void Handle(Peer* peer, uint16_t type, const std::string& body, int fd);
  void Drain(Peer* peer, uint64_t mark);
  static bool IsEmpty(const Peer& peer);

  const std::string path_;
  const std::shared_ptr<Shelf> shelf_;
  const Options options_;
  std::atomic<bool> stop_{false}, drain_, receive_;
  int listener_ = -1;
  std::mutex peers_mutex_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::thread thread_;
};

std::string Message(uint16_t type, const std::string& body);
std::string PlanBody(uint64_t graph_id, uint64_t plan_id, uint64_t bytes,
                     uint64_t peak = 100, uint64_t ns = 200);
std::string PlanStatusBody(uint64_t graph_id, uint32_t status,
                           uint64_t smallest, const std::string& text);
std::string CommandBody(uint32_t command, uint32_t kinds = 0,
                        uint64_t steps = 0);

// Returns a memfd with this text and these seals.
int MemfdOf(const std::string& text, int seals);
constexpr int kAllSeals = 0xf;  // SEAL, SHRINK, GROW, WRITE

}  // namespace reprise::profiler::testing
