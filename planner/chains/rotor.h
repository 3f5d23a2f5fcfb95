// SPDX-License-Identifier: Apache-2.0
//
// Optimal recomputation of chains.
//
// Rotor: stages 1..L, x_i the output of stage i (x_0 the input), g_i the
// gradient of x_i. A stage runs forward either keeping only x_i, or with one of
// its options q keeping X_i^q bytes (including x_i) for its backward.
// T[a][b][m] is the least time for forward and backward of a..b with x_(a-1)
// present (charged to the caller) and g_b present (charged to m):
//
//   leaf   a = b   min over q of
//                    f_a^q + b_a^q
//                  where m >= need(a,b,q)
//
//   keep   a < b   min over q of
//                    f_a^q + T[a+1][b][m - X_a^q] + b_a^q
//                  where m >= need(a,b,q)
//
//   check  a < b   min over a < j <= b of
//                    sum_(i=a..j-1) f_i + T[j][b][m - x_(j-1)] + T[a][j-1][m]
//                  where m >= g_b + max(x_a + t_a,
//                                       max_(a<i<j) x_(i-1) + x_i + t_i)
//
//   need(a,b,q) = max(g_b + X_a^q + t_a^q,
//                     X_a^q + g_a + g_(a-1) + u_a^q)
//
// t, u are temporaries of forward and backward. Optimal among the schedules
// whose checkpoints stay until their backward. One table answers every m.
// Beaumont, Eyraud-Dubois, Hermann, Joly, Shilova: Optimal checkpointing for
// heterogeneous chains, 2019; options after Rockmate, 2023. Bytes are rounded
// up to slots, so a plan never exceeds m. O(L^2 slots (L + Q)) time, O(L^2
// slots) memory.
//
// Revolve: the uniform chain in closed form. l steps with s slots (including
// the start's) take t(l, s) = r l - C(s + r, s + 1) forward steps, where r is
// the least with C(s + r, s) >= l; a step's forward at its own reversal is not
// counted. Griewank and Walther, 2000.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace reprise::planner {

struct RotorOption {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0;
  int64_t kept_bytes = 0;
  int64_t forward_temporary_bytes = 0;
  int64_t backward_temporary_bytes = 0;
};

struct RotorStage {
  int64_t forward_ns = 0;  // keeping the output only
  int64_t forward_temporary_bytes = 0;
  int64_t output_bytes = 0;
  int64_t gradient_bytes = 0;  // of the output
  std::vector<RotorOption> options = {};
};

struct RotorChain {
  int64_t input_gradient_bytes = 0;
  std::vector<RotorStage> stages = {};
};

// One step of a schedule. Stages count from 0.
struct RotorStep {
  enum class Kind : uint8_t { kForward, kForwardKeeping, kBackward };
  Kind kind = Kind::kForward;
  int32_t stage = 0;
  int32_t option = 0;  // of kForwardKeeping and kBackward
  friend bool operator==(const RotorStep&, const RotorStep&) = default;
};

class Rotor {
 public:
  // Builds the tables for up to `slots` slots of `slot_bytes` bytes. If
  // should_stop returns true meanwhile, nothing is possible.
  Rotor(const RotorChain& chain, int64_t slot_bytes, int slots,
        const std::function<bool()>& should_stop = {});

  static constexpr int64_t kImpossible = INT64_MAX;

  // Returns the least time within `bytes` (without the input, which is the
  // caller's); kImpossible if nothing fits. Uses at most as much as the table
  // has slots for.
  int64_t TimeNs(int64_t bytes) const;
  // Returns the schedule of TimeNs, which must be possible.
  std::vector<RotorStep> Steps(int64_t bytes) const;
  int64_t ticks() const { return ticks_; }
  bool interrupted() const { return interrupted_; }

 private:
  struct Choice {
    int64_t time_ns = kImpossible;
    int32_t option = -1;  // keep or leaf
    int32_t split = -1;   // check: j
  };

  int SlotsOf(int64_t bytes) const;  // rounded up
  // Returns the position of (a, b) in the table.
  size_t Index(int a, int b) const;
  // Returns T[a][b][m]; kImpossible for m < 0.
  int64_t At(int a, int b, int m) const;
  // Returns the best choice for (a, b, m), by the recurrence.
  Choice Best(int a, int b, int m) const;
  // Returns need(a, b, q) in slots.
  int Need(int a, int b, const RotorOption& option) const;

  const RotorChain& chain_;
  const int64_t slot_bytes_;
  const int slots_;
  std::vector<int64_t> forward_sum_;         // prefix sums over the stages
  std::vector<std::vector<int64_t>> table_;  // by (a, b), by m
  // By (a, j): slots for running a..j-1 forward, keeping only the last output.
  std::vector<std::vector<int>> sweep_;
  int64_t ticks_ = 0;
  bool interrupted_ = false;
};

// Returns t(l, s); kImpossible for s < 1 and l > 1.
int64_t RevolveForwardSteps(int64_t length, int64_t slots);
// Returns Revolve's schedule for a chain of `length` stages: forward steps that
// keep only the output, and forward-keeping plus backward of each stage in
// turn.
std::vector<RotorStep> RevolveSteps(int length, int slots);

}  // namespace reprise::planner
