// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that are the same on every machine and compiler, which std::
// distributions are not. SplitMix64 (Steele et al., 2014).
#pragma once

#include <bit>
#include <cstdint>

namespace reprise::planner {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // Returns 64 random bits.
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // Returns a number from 0 to count - 1; count must be positive.
  int32_t Below(int64_t count) {
    return static_cast<int32_t>((static_cast<unsigned __int128>(Next()) *
                                 static_cast<uint64_t>(count)) >>
                                64);
  }

  // Returns true with a probability of `chance` percent.
  bool Percent(int chance) { return Below(100) < chance; }

  // Returns an exponential variable with mean 1, times 2^16, for annealing:
  // -ln(u) from the exponent of u and a linear mantissa (error at most 0.06),
  // in integers only.
  int64_t Exponential16() {
    const uint32_t u = static_cast<uint32_t>(Next() >> 32) | 1;
    const int exponent = std::bit_width(u) - 1;
    const int64_t mantissa =
        ((static_cast<uint64_t>(u) << 16) >> exponent) - (1 << 16);
    const int64_t log2 = (static_cast<int64_t>(exponent) << 16) + mantissa;
    const int64_t bits = (int64_t{32} << 16) - log2;
    return bits * 45426 >> 16;  // ln 2 = 45426 / 65536
  }

 private:
  uint64_t state_;
};

}  // namespace reprise::planner
