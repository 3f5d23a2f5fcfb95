// SPDX-License-Identifier: Apache-2.0
//
// Two ops made again in a tenth of their time, bit for bit.
//
// Batch norm in training reads its input three times: for the mean, for the
// variance, for the output. The first call has left mean m and inverse
// deviation v of every channel; with alpha = v * weight, beta = bias - m *
// alpha the output is alpha * x + beta, and this is what the kernel of
// evaluation computes as well. It takes 1 / sqrt(variance + eps) where training
// takes v, so it is called with a variance of 1, no eps, a mean of zero, and
// alpha and beta for weight and bias: 1 and 0 change no bits. Whether beta is
// rounded once or twice is up to the compiler of torch: shortcut.py finds out
// which of the two it is.
//
// A mask of bernoulli_ is zeros and ones: 256 elements for 32 bytes. Drawing
// them takes a generator that knows no shortcut; spreading them takes next to
// nothing.
#ifndef REPRISE_TORCH_COMPILED_SHORTCUT_H_
#define REPRISE_TORCH_COMPILED_SHORTCUT_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace reprise_fast {

// ---- Batch norm ------------------------------------------------------------

template <typename T>
void Coefficients(const at::Tensor& mean, const at::Tensor& invstd,
                  const T* weight, const T* bias, bool fused, T* alpha, T* beta,
                  T* zero) {
  const T* const m = mean.const_data_ptr<T>();
  const T* const v = invstd.const_data_ptr<T>();
  for (int64_t c = 0; c < mean.numel(); ++c) {
    alpha[c] = v[c] * (weight != nullptr ? weight[c] : T(1));
    const T b = bias != nullptr ? bias[c] : T(0);
    // A product kept apart, or GCC would fuse this as well.
    const volatile T product = m[c] * alpha[c];
    beta[c] = fused ? std::fma(-m[c], alpha[c], b) : b - product;
    zero[c] = std::copysign(T(0), alpha[c]);  // zero * alpha is +0
  }
}

// By type, float and double: is beta rounded once? Unknown: there is no
// shortcut.
inline std::optional<bool> rounds_once[2];

inline std::optional<bool> Rounding(at::ScalarType type) {
  return rounds_once[type == at::kDouble ? 1 : 0];
}

// The first output of a batch norm in training whose other two are there.
// `fused`: beta is rounded once. Only for what Normalizes says.
inline at::Tensor Normalized(const at::Tensor& x,
                             const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias,
                             const at::Tensor& mean, const at::Tensor& invstd,
                             bool fused) {
  const auto make = [&]<typename T>(T) {
    const auto data = [](const std::optional<at::Tensor>& t) {
      return t.has_value() && t->defined() ? t->const_data_ptr<T>() : nullptr;
    };
    // Not from torch's allocator: a plan that fits to the byte still does.
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

// One number per channel of x.
inline bool AreStatistics(const at::Tensor& x, const at::Tensor& t) {
  return t.layout() == at::kStrided && t.is_cpu() && !t.is_neg() &&
         t.scalar_type() == x.scalar_type() && t.dim() == 1 &&
         t.is_contiguous() && t.numel() == x.size(1);
}

// May it be made by Normalized? There is another kernel, with another formula,
// for inputs that lie in no order.
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

// Elements without holes between them, of a type whose one is one pattern.
inline bool IsMask(const at::Tensor& t) {
  const auto type = t.scalar_type();
  return t.is_cpu() && t.layout() == at::kStrided && t.numel() > 0 &&
         t.is_non_overlapping_and_dense() && !t.is_neg() &&
         (type == at::kFloat || type == at::kDouble || type == at::kHalf ||
          type == at::kBFloat16 || type == at::kBool);
}

// What zero and one look like in memory.
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

// A bit for every element, in the order of memory. Undefined: something is
// neither zero nor one.
inline at::Tensor BitsOf(const at::Tensor& mask) {
  const int64_t count = mask.numel();
  at::Tensor bits = at::empty({(count + 7) / 8}, at::kByte);
  auto* const to = bits.mutable_data_ptr<uint8_t>();
  const bool fine = WithOne(mask, [&]<typename T>(T one) {
    const T* const from = static_cast<const T*>(mask.const_data_ptr());
    T odd = 0;
    const auto bit = [&](T value) {
      const bool on = value != 0;
      odd |= static_cast<T>(value ^ (on ? one : T(0)));
      return static_cast<unsigned>(on);
    };
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      unsigned byte = 0;
      for (int k = 0; k < 8; ++k) byte |= bit(from[i + k]) << k;
      to[i / 8] = static_cast<uint8_t>(byte);
    }
    if (i < count) {
      unsigned byte = 0;
      for (int k = 0; i + k < count; ++k) byte |= bit(from[i + k]) << k;
      to[i / 8] = static_cast<uint8_t>(byte);
    }
    return odd == 0;
  });
  return fine ? bits : at::Tensor();
}

// Writes them to a tensor that lies as the one they are of.
inline void SpreadBits(const at::Tensor& bits, const at::Tensor& mask) {
  const int64_t count = mask.numel();
  const auto* const from = bits.const_data_ptr<uint8_t>();
  WithOne(mask, [&]<typename T>(T one) {
    T* const to = static_cast<T*>(mask.mutable_data_ptr());
    for (int64_t i = 0; i + 8 <= count; i += 8) {
      const unsigned byte = from[i / 8];
      for (int k = 0; k < 8; ++k)
        to[i + k] = ((byte >> k) & 1) != 0 ? one : T(0);
    }
    for (int64_t i = count & ~int64_t{7}; i < count; ++i)
      to[i] = ((from[i / 8] >> (i % 8)) & 1) != 0 ? one : T(0);
  });
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_SHORTCUT_H_
