// SPDX-License-Identifier: Apache-2.0
//
// Ops that only a GPU has, of tensors on the host: cuDNN's batch norm and the
// fused attentions. Random numbers come from the CPU's default generator, which
// has the seed that the call drew.
#ifndef REPRISE_TESTS_FAKEGPU_GPU_OPS_H_
#define REPRISE_TESTS_FAKEGPU_GPU_OPS_H_

#include "host_call.h"

namespace fakegpu {

// A tensor that a real kernel would leave unwritten: of zeros, or of random
// bytes if FAKEGPU_GARBAGE=1.
inline Tensor unwritten(at::IntArrayRef sizes, at::ScalarType type) {
  static const bool garbage = getenv("FAKEGPU_GARBAGE") != nullptr;
  static std::mt19937_64 random(std::random_device{}());
  Tensor made = at::zeros(sizes, type);
  auto* bytes = static_cast<unsigned char*>(made.data_ptr());
  for (size_t i = 0; garbage && i < made.nbytes(); ++i)
    bytes[i] = (unsigned char)random();
  return made;
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> cudnn_batch_norm(
    const Tensor& x, const Tensor& w, const std::optional<Tensor>& b,
    const std::optional<Tensor>& rm, const std::optional<Tensor>& rv,
    bool training, double momentum, double eps) {
  auto [y, m, i] =
      at::native_batch_norm(x, w, b, rm, rv, training, momentum, eps);
  return {y, m, i, unwritten({training ? x.numel() / 8 + 64 : 0}, at::kByte)};
}
inline std::tuple<Tensor, Tensor, Tensor> cudnn_batch_norm_backward(
    const Tensor& x, const Tensor& gy, const Tensor& w,
    const std::optional<Tensor>& rm, const std::optional<Tensor>& rv,
    const std::optional<Tensor>& m, const std::optional<Tensor>& i, double eps,
    const Tensor&) {
  return at::native_batch_norm_backward(gy, x, w, rm, rv, m, i, true, eps,
                                        {true, true, true});
}

// Attention with dropout, which the CPU's kernel does not support, written out
// in plain ops. The dropout mask is drawn from `seed`.
struct Open {
  Tensor weights, mask;
};
inline Open opened(const Tensor& q, const Tensor& k, const Tensor& bias,
                   double dropout, bool causal, double scale, int64_t seed) {
  Tensor s = at::matmul(q, k.transpose(-2, -1)) * scale;
  if (bias.defined()) s = s + bias;
  if (causal)
    s = s.masked_fill(
        at::ones({q.size(-2), k.size(-2)}, q.options().dtype(at::kBool))
            .tril()
            .logical_not(),
        -INFINITY);
  auto gen = at::detail::createCPUGenerator((uint64_t)seed);
  Tensor mask = at::empty(s.sizes(), s.options()).bernoulli_(1 - dropout, gen) /
                (1 - dropout);
  return {at::softmax(s, -1), mask};
}
// Returns the output, its logarithms of sums, and the seed, which torch leaves
// unwritten without dropout.
inline std::tuple<Tensor, Tensor, Tensor> forward(
    const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>& bias, double dropout, bool causal,
    std::optional<double> scale) {
  if (dropout == 0) {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0, causal, bias, scale);
    return {out, lse, unwritten({}, at::kLong)};
  }
  const double by = scale.value_or(1.0 / std::sqrt((double)q.size(-1)));
  const auto seed =
      (int64_t)at::detail::getDefaultCPUGenerator().current_seed();
  auto [p, m] =
      opened(q, k, bias.value_or(Tensor()), dropout, causal, by, seed);
  return {at::matmul(p * m, v),
          at::zeros({q.size(0), q.size(1), q.size(2)}, at::kFloat),
          at::scalar_tensor(seed, at::kLong)};
}
inline std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& go, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& bias, const Tensor& out, const Tensor& lse, double dropout,
    bool causal, std::optional<double> scale, const Tensor& seed) {
  const auto mask = bias.defined() ? std::optional<Tensor>(bias) : std::nullopt;
  if (dropout == 0)
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(
        go, q, k, v, out, lse, 0, causal, mask, scale);
  const double by = scale.value_or(1.0 / std::sqrt((double)q.size(-1)));
  auto [p, m] = opened(q, k, bias, dropout, causal, by, seed.item<int64_t>());
  Tensor dp = at::matmul(go, v.transpose(-2, -1)) * m,
         ds = p * (dp - (dp * p).sum(-1, true)) * by;
  return {at::matmul(ds, k), at::matmul(ds.transpose(-2, -1), q),
          at::matmul((p * m).transpose(-2, -1), go)};
}
using Flash = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt,
                         c10::SymInt, Tensor, Tensor, Tensor>;
inline Flash flash(const Tensor& q, const Tensor& k, const Tensor& v,
                   double dropout, bool causal, bool,
                   std::optional<double> scale) {
  auto [out, lse, seed] =
      forward(q, k, v, std::nullopt, dropout, causal, scale);
  Tensor none;
  return {out,
          lse,
          none,
          none,
          q.size(2),
          k.size(2),
          at::full({2}, seed.item(), at::kLong),
          unwritten({}, at::kLong),
          at::empty({0}, q.options())};
}
inline std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& go, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& out, const Tensor& lse, const Tensor&, const Tensor&,
    c10::SymInt, c10::SymInt, double dropout, bool causal, const Tensor& state,
    const Tensor&, std::optional<double> scale) {
  return backward(go, q, k, v, Tensor(), out, lse, dropout, causal, scale,
                  state.select(0, 0));
}
inline std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(
    const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>& bias, bool, double dropout, bool causal,
    std::optional<double> scale) {
  auto [out, lse, seed] = forward(q, k, v, bias, dropout, causal, scale);
  return {out, lse, seed, at::zeros({}, at::kLong)};
}
inline std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& go, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& bias, const Tensor& out, const Tensor& lse,
    const Tensor& seed, const Tensor&, double dropout, std::array<bool, 4>,
    bool causal, std::optional<double> scale) {
  auto [dq, dk, dv] =
      backward(go, q, k, v, bias, out, lse, dropout, causal, scale, seed);
  return {dq, dk, dv, Tensor()};
}

}  // namespace fakegpu

#endif  // REPRISE_TESTS_FAKEGPU_GPU_OPS_H_
