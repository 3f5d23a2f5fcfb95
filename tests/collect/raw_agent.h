// SPDX-License-Identifier: Apache-2.0
//
// A hand-written agent side of the wire protocol: it can do everything that
// honest agents do and everything that they never would. Tests may change any
// field before it is sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/include/reprise_wire.h"

namespace reprise::server {

// Creates a memfd with this content and these seals; returns -1 on failure.
int TestMemfd(std::string_view content, int seals);
inline constexpr int kAllSeals = 0x000f;  // SEAL | SHRINK | GROW | WRITE

// Returns a new version 7 UUID.
std::string NewUuid();

class RawAgent {
 public:
  explicit RawAgent(uint32_t slots = REPRISE_RING_MIN_SLOTS);
  ~RawAgent();
  RawAgent(const RawAgent&) = delete;
  RawAgent& operator=(const RawAgent&) = delete;

  // May be changed before Connect.
  reprise_msg_hello hello{};
  std::string labels = "name=test\n";

  reprise_ring_header* header() const;
  reprise_slot* slot(uint64_t position) const;
  int ring_fd() const { return ring_fd_; }

  // Connects without sending anything.
  bool Dial(const std::string& path);
  // Dials, sends HELLO and waits for the answer. Returns true after WELCOME.
  bool Connect(const std::string& path);
  void Hang();  // closes the socket

  bool Send(uint16_t type, std::string_view body,
            const std::vector<int>& fds = {});
  bool SendBytes(std::string_view packet, const std::vector<int>& fds = {});
  bool SendName(uint32_t id, std::string_view text);
  bool SendBye();
  bool SendGraph(std::string_view json, const std::string& budget,
                 const std::string& capabilities, uint64_t request_id = 0,
                 uint64_t reserve_bytes = 0);

  struct Reply {
    uint16_t type = 0;  // 0: the connection is closed
    std::string body;
    std::string file;  // content of the memfd that came with it
    int seals = 0;
  };
  // Returns the next message, or nothing after `timeout_ms`.
  std::optional<Reply> Receive(int timeout_ms = 20000);
  // Skips other messages (SOLVING, for example) until one of this type or the
  // end.
  std::optional<Reply> ReceiveType(uint16_t type);
  std::string refusal() const { return refusal_; }

  // Pushes as an agent does. Returns false, and counts a drop, if the ring is
  // full.
  bool Push(reprise_slot record);
  bool PushAlloc(uint64_t address, int64_t bytes = 64);
  bool PushStepDone(uint64_t step, uint32_t thread = 1);
  bool PushStepMem(uint64_t step, uint32_t thread = 1);
  // Pushes allocs first..first+count-1, waiting while the ring is full.
  void PushAllocs(uint64_t first, uint64_t count);
  // Pushes any record, waiting while the ring is full.
  void PushPatiently(const reprise_slot& record);
  // Reserves a slot and never publishes it.
  void Tear();

 private:
  uint64_t Reserve();

  uint32_t slots_;
  int ring_fd_ = -1;
  int socket_ = -1;
  uint8_t* memory_ = nullptr;
  size_t bytes_ = 0;
  std::string refusal_;
};

reprise_slot AllocRecord(uint64_t address, int64_t bytes = 64);

}  // namespace reprise::server
