// SPDX-License-Identifier: Apache-2.0
//
// Recomputes two ops in a tenth of their time, bit for bit.
//
// Batch norm in training reads its input three times: for the mean, for the
// variance, and for the output. The first call leaves the mean m and the
// inverse deviation v of every channel. With alpha = v * weight and beta = bias
// - m * alpha, the output is alpha * x + beta, which is also what the
// evaluation kernel computes. That kernel takes 1 / sqrt(variance + eps) where
// training takes v, so it is called with variance 1, eps 0, mean 0, weight
// alpha and bias beta: the factors 1 and the zeros change no bits. Whether beta
// is rounded once or twice depends on the compiler that built torch;
// shortcut.py finds out which.
//
// A mask drawn by bernoulli_ consists of zeros and ones: 256 elements fit in 32
// bytes. Drawing them again needs the slow generator; expanding the bits costs
// almost nothing.
#ifndef REPRISE_TORCH_COMPILED_SHORTCUT_H_
#define REPRISE_TORCH_COMPILED_SHORTCUT_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

namespace reprise_fast {

// ---- Batch norm ------------------------------------------------------------

// Computes alpha and beta of every channel, and a zero of the sign that makes
// zero * alpha equal +0. `fused`: beta is rounded once.
template <typename T>
void Coefficients(const at::Tensor& mean, const at::Tensor& invstd,
                  const T* weight, const T* bias, bool fused, T* alpha, T* beta,
                  T* zero) {
  const T* const m = mean.const_data_ptr<T>();
  const T* const v = invstd.const_data_ptr<T>();
  for (int64_t c = 0; c < mean.numel(); ++c) {
    alpha[c] = v[c] * (weight != nullptr ? weight[c] : T(1));
    const T b = bias != nullptr ? bias[c] : T(0);
    // A separate product: otherwise GCC would contract this expression as well.
    const volatile T product = m[c] * alpha[c];
    beta[c] = fused ? std::fma(-m[c], alpha[c], b) : b - product;
    zero[c] = std::copysign(T(0), alpha[c]);  // zero * alpha is +0
  }
}

// For float [0] and double [1]: whether torch rounds beta once. Not set: this
// torch has no shortcut for the type.
inline std::optional<bool> rounds_once[2];

inline std::optional<bool> Rounding(at::ScalarType type) {
  return rounds_once[type == at::kDouble ? 1 : 0];
}

// Returns the first output of a training batch norm whose other two outputs are
// given. `fused`: beta is rounded once. Requires Normalizes(x, weight, bias).
inline at::Tensor Normalized(const at::Tensor& x,
                             const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias,
                             const at::Tensor& mean, const at::Tensor& invstd,
                             bool fused) {
  const auto make = [&]<typename T>(T) {
    const auto data = [](const std::optional<at::Tensor>& t) {
      return t.has_value() && t->defined() ? t->const_data_ptr<T>() : nullptr;
    };
    // std::vector, not torch's allocator: these bytes must not count against a
    // plan that fits to the byte.
    const int64_t channels = mean.numel();
    std::vector<T> rows(static_cast<size_t>(channels) * 4, T(1));
    const auto row = [&](int64_t i) { return rows.data() + i * channels; };
    Coefficients<T>(mean, invstd, data(weight), data(bias), fused, row(0),
                    row(1), row(2));
    const auto tensor = [&](int64_t i) {
      return at::from_blob(row(i), {channels}, mean.options());
    };
    return std::get<0>(at::native_batch_norm(x, tensor(0), tensor(1), tensor(2),
                                             tensor(3), /*training=*/false,
                                             /*momentum=*/0.0, /*eps=*/0.0));
  };
  return mean.scalar_type() == at::kDouble ? make(double{}) : make(float{});
}

// Returns whether `t` has one number per channel of `x`, in the same type.
inline bool AreStatistics(const at::Tensor& x, const at::Tensor& t) {
  return t.layout() == at::kStrided && t.is_cpu() && !t.is_neg() &&
         t.scalar_type() == x.scalar_type() && t.dim() == 1 &&
         t.is_contiguous() && t.numel() == x.size(1);
}

// Returns whether Normalized supports these inputs. Inputs that are neither
// contiguous nor channels-last use another kernel with another formula.
inline bool Normalizes(const at::Tensor& x,
                       const std::optional<at::Tensor>& weight,
                       const std::optional<at::Tensor>& bias) {
  const auto type = x.scalar_type();
  if (type != at::kFloat && type != at::kDouble) return false;
  if (x.layout() != at::kStrided || !x.is_cpu() || x.is_neg()) return false;
  if (x.dim() < 2 || x.numel() == 0) return false;
  const auto may = [&](const std::optional<at::Tensor>& t) {
    return !t.has_value() || !t->defined() || AreStatistics(x, *t);
  };
  if (!may(weight) || !may(bias)) return false;
  return x.is_contiguous() ||
         (x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast));
}

// ---- Masks -----------------------------------------------------------------

// Returns whether `t` can hold a mask that BitsOf packs: a dense tensor of a
// supported type on the CPU.
inline bool IsMask(const at::Tensor& t) {
  const auto type = t.scalar_type();
  return t.is_cpu() && t.layout() == at::kStrided && t.numel() > 0 &&
         t.is_non_overlapping_and_dense() && !t.is_neg() &&
         (type == at::kFloat || type == at::kDouble || type == at::kHalf ||
          type == at::kBFloat16 || type == at::kBool);
}

// Calls `function` with the bit pattern of 1 in the type of `t`.
template <typename Function>
auto WithOne(const at::Tensor& t, Function function) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return function(uint32_t{0x3f800000});
    case at::kDouble:
      return function(uint64_t{0x3ff0000000000000});
    case at::kHalf:
      return function(uint16_t{0x3c00});
    case at::kBFloat16:
      return function(uint16_t{0x3f80});
    default:
      return function(uint8_t{1});
  }
}

// Elements that are packed or written back at a time.
inline constexpr int64_t kMaskBlock = 64;

// At -O2, GCC leaves loops as they are that it would have to check.
#if defined(__GNUC__) && !defined(__clang__)
#define REPRISE_VECTORIZED __attribute__((optimize("O3"), noinline))
#else
#define REPRISE_VECTORIZED
#endif

// Says of each element of a block whether it is not 0. Returns 0 if all others
// are `one`.
template <typename T>
REPRISE_VECTORIZED T AreSet(const T* from, T one, uint8_t* set) {
  T odd = 0;
  for (int64_t k = 0; k < kMaskBlock; ++k) {
    const T is_set = from[k] != 0;
    set[k] = static_cast<uint8_t>(is_set);
    odd |= from[k] ^ (static_cast<T>(-is_set) & one);
  }
  return odd;
}

template <typename T>
REPRISE_VECTORIZED void SetAll(const uint8_t* set, T one, T* to) {
  for (int64_t k = 0; k < kMaskBlock; ++k) {
    to[k] = static_cast<T>(-static_cast<T>(set[k])) & one;
  }
}

// Eight bytes, each 0 or 1, and the byte that has them as its bits: each
// product of one bit and one power of two has a place of its own.
inline uint8_t Packed(const uint8_t* set) {
  uint64_t word = 0;
  std::memcpy(&word, set, sizeof(word));
  return static_cast<uint8_t>((word * 0x0102040810204080) >> 56);
}

inline void Unpacked(uint8_t bits, uint8_t* set) {
  const uint64_t each = (bits * 0x0101010101010101) & 0x8040201008040201;
  const uint64_t word = ((each + 0x7f7f7f7f7f7f7f7f) >> 7) & 0x0101010101010101;
  std::memcpy(set, &word, sizeof(word));
}

// Returns one bit per element, in memory order. Undefined if an element is
// neither 0 nor 1.
inline at::Tensor BitsOf(const at::Tensor& mask) {
  const int64_t count = mask.numel();
  at::Tensor bits = at::empty({(count + 7) / 8}, at::kByte);
  auto* const to = bits.mutable_data_ptr<uint8_t>();
  const bool fine = WithOne(mask, [&]<typename T>(T one) {
    const T* const from = static_cast<const T*>(mask.const_data_ptr());
    T odd = 0, last[kMaskBlock] = {};
    for (int64_t i = 0; i < count; i += kMaskBlock) {
      const int64_t some = std::min(kMaskBlock, count - i);
      const T* block = from + i;
      if (some < kMaskBlock) {
        std::copy_n(block, some, last);
        block = last;
      }
      uint8_t set[kMaskBlock];
      odd |= AreSet(block, one, set);
      for (int64_t k = 0; k < some; k += 8) to[(i + k) / 8] = Packed(set + k);
    }
    return odd == 0;
  });
  return fine ? bits : at::Tensor();
}

// Writes the elements back to a tensor with the memory layout of the original
// mask.
inline void SpreadBits(const at::Tensor& bits, const at::Tensor& mask) {
  const int64_t count = mask.numel();
  const auto* const from = bits.const_data_ptr<uint8_t>();
  WithOne(mask, [&]<typename T>(T one) {
    T* const to = static_cast<T*>(mask.mutable_data_ptr());
    T last[kMaskBlock];
    for (int64_t i = 0; i < count; i += kMaskBlock) {
      const int64_t some = std::min(kMaskBlock, count - i);
      uint8_t set[kMaskBlock] = {};
      for (int64_t k = 0; k < some; k += 8)
        Unpacked(from[(i + k) / 8], set + k);
      SetAll(set, one, some < kMaskBlock ? last : to + i);
      if (some < kMaskBlock) std::copy_n(last, some, to + i);
    }
  });
}

#undef REPRISE_VECTORIZED

// ---- For the Python engine (shortcut.py) ------------------------------------

// As above, but they throw TypeError for arguments that are not supported.
inline at::Tensor CheckedNormalized(const at::Tensor& x,
                                    const std::optional<at::Tensor>& weight,
                                    const std::optional<at::Tensor>& bias,
                                    const at::Tensor& mean,
                                    const at::Tensor& invstd, bool fused) {
  TORCH_CHECK_TYPE(
      Normalizes(x, weight, bias) && AreStatistics(x, mean) &&
          AreStatistics(x, invstd),
      "these tensors do not define a batch norm that can be computed here");
  return Normalized(x, weight, bias, mean, invstd, fused);
}

inline at::Tensor CheckedBitsOf(const at::Tensor& mask) {
  const at::Tensor bits = IsMask(mask) ? BitsOf(mask) : at::Tensor();
  TORCH_CHECK_TYPE(bits.defined(),
                   "the mask holds values other than zeros and ones");
  return bits;
}

inline void CheckedSpreadBits(const at::Tensor& bits, const at::Tensor& mask) {
  TORCH_CHECK_TYPE(IsMask(mask) && bits.scalar_type() == at::kByte &&
                       bits.is_contiguous() &&
                       bits.numel() == (mask.numel() + 7) / 8,
                   "the bits do not match the size of the tensor");
  SpreadBits(bits, mask);
}

// Sets whether this torch rounds beta of a batch norm once, for double or for
// float.
inline void RoundOnce(bool is_double, bool once) {
  rounds_once[is_double ? 1 : 0] = once;
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_SHORTCUT_H_
