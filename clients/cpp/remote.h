// SPDX-License-Identifier: Apache-2.0
//
// Plans for a training loop in C++, over gRPC: of a server anywhere, without the
// agent in the process.
//
//   reprise::Remote remote("127.0.0.1:7070", token);
//   const reprise::Answer answer = remote.Ask(graph, "0.5x");
//   for (const reprise::Point& point : remote.Sweep(graph, 21).points) ...
//
// Nothing throws: `why` says what the server, or the connection, refuses. Needs
// gRPC and protobuf, and the messages of proto/reprise/v1. Steps are reported by
// the agent (plan.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan.h"

namespace reprise {

// What a budget costs.
struct Point {
  int64_t budget_bytes = 0;
  bool feasible = false;
  int64_t peak_bytes = 0;
  // Extra time and its proven lower bound, as fractions of the time without a
  // plan.
  double overhead = 0;
  double bound = 0;
};

struct Curve {
  // Why there is no curve, or it ends early; "" if it is whole.
  std::string why;
  // From the largest budget to the smallest.
  std::vector<Point> points;
};

class Remote {
 public:
  // `address` is "HOST:PORT". `token` is that of the server, "" if it asks for
  // none. `authority` is the PEM text of the certificate authority to trust; ""
  // connects without TLS.
  explicit Remote(const std::string& address, const std::string& token = "",
                  const std::string& authority = "");
  ~Remote();
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;

  // Returns a plan, as Session::Ask does. `executor` is "free" or "once".
  // `time_limit_ms` is how long to search for a better one; 0: the default
  // effort, the same plan every time.
  Answer Ask(const Graph& graph, const std::string& budget,
             const std::string& executor = "free", uint32_t time_limit_ms = 0);

  // Returns what `points` budgets cost.
  Curve Sweep(const Graph& graph, uint32_t points = 21,
              const std::string& executor = "free");

 private:
  struct Channel;
  std::unique_ptr<Channel> channel_;
};

}  // namespace reprise
