// SPDX-License-Identifier: Apache-2.0
//
// Ops that only a GPU has: cuDNN's batch norm and the fused attentions.
#ifndef REPRISE_TESTS_FAKEGPU_GPU_OPS_H_
#define REPRISE_TESTS_FAKEGPU_GPU_OPS_H_

#include "host_call.h"

namespace fakegpu {

// Fills a tensor that a real kernel would leave unwritten: with zeros, or with
// random bytes if FAKEGPU_GARBAGE=1.
inline void unwritten(const Tensor& t) {
  static const bool garbage = getenv("FAKEGPU_GARBAGE") != nullptr;
  static std::mt19937_64 random(std::random_device{}());
  auto* bytes = static_cast<unsigned char*>(t.data_ptr());
  for (size_t i = 0; i < t.nbytes(); ++i)
    bytes[i] = garbage ? (unsigned char)random() : 0;
}

inline Tensor H(Call& c, const Tensor& t) { return c.host(t); }
inline std::optional<Tensor> H(Call& c, const std::optional<Tensor>& t) {
  return t && t->defined() ? std::optional<Tensor>(c.host(*t)) : std::nullopt;
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> cudnn_batch_norm(
    const Tensor& x, const Tensor& w, const std::optional<Tensor>& b,
    const std::optional<Tensor>& rm, const std::optional<Tensor>& rv,
    bool training, double momentum, double eps) {
  const c10::cuda::CUDAGuard g(x.device());
  const Alone alone;
  Call c;
  auto [y, m, i] = at::native_batch_norm(H(c, x), H(c, w), H(c, b), H(c, rm),
                                         H(c, rv), training, momentum, eps);
  Tensor reserve = at::empty({training ? x.numel() / 8 + 64 : 0},
                             x.options().dtype(at::kByte));
  unwritten(reserve);
  return {c.device(y, x.device()), c.device(m, x.device()),
          c.device(i, x.device()), reserve};
}
inline std::tuple<Tensor, Tensor, Tensor> cudnn_batch_norm_backward(
    const Tensor& x, const Tensor& gy, const Tensor& w,
    const std::optional<Tensor>& rm, const std::optional<Tensor>& rv,
    const std::optional<Tensor>& m, const std::optional<Tensor>& i, double eps,
    const Tensor&) {
  const c10::cuda::CUDAGuard g(x.device());
  const Alone alone;
  Call c;
  auto [gx, gw, gb] = at::native_batch_norm_backward(
      H(c, gy), H(c, x), H(c, w), H(c, rm), H(c, rv), H(c, m), H(c, i), true,
      eps, {true, true, true});
  return {c.device(gx, x.device()), c.device(gw, x.device()),
          c.device(gb, x.device())};
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
inline int64_t drawn(c10::Device where) {
  auto gen = at::cuda::detail::getDefaultCUDAGenerator(where.index());
  const std::lock_guard<std::mutex> g(gen.mutex());
  auto* impl = at::check_generator<at::CUDAGeneratorImpl>(gen);
  const uint64_t offset = impl->get_offset();
  impl->set_offset(offset + 4);
  return (int64_t)((impl->current_seed() * 0x9E3779B97F4A7C15ull) ^
                   (offset * 0xD1B54A32D192ED03ull));
}
inline std::tuple<Tensor, Tensor, Tensor> forward(
    Call& c, const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>& bias, double dropout, bool causal,
    std::optional<double> scale) {
  const double by = scale.value_or(1.0 / std::sqrt((double)q.size(-1)));
  const std::optional<Tensor> mask = H(c, bias);
  if (dropout == 0) {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        H(c, q), H(c, k), H(c, v), 0, causal, mask, scale);
    Tensor seed =
        at::empty({}, at::kLong);  // torch leaves it unwritten without dropout
    unwritten(seed);
    return {c.device(out, q.device()), c.device(lse, q.device()), seed};
  }
  const int64_t seed = drawn(q.device());
  auto [p, m] = opened(H(c, q), H(c, k), mask.value_or(Tensor()), dropout,
                       causal, by, seed);
  Tensor out = at::matmul(p * m, H(c, v)),
         lse = at::zeros({q.size(0), q.size(1), q.size(2)}, at::kFloat);
  return {c.device(out, q.device()), c.device(lse, q.device()),
          at::scalar_tensor(seed, at::kLong)};
}
inline std::tuple<Tensor, Tensor, Tensor> backward(
    Call& c, const Tensor& go, const Tensor& q, const Tensor& k,
    const Tensor& v, const std::optional<Tensor>& bias, const Tensor& out,
    const Tensor& lse, double dropout, bool causal, std::optional<double> scale,
    const Tensor& seed) {
  const double by = scale.value_or(1.0 / std::sqrt((double)q.size(-1)));
  const std::optional<Tensor> mask = H(c, bias);
  if (dropout == 0) {
    auto [a, b, d] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        H(c, go), H(c, q), H(c, k), H(c, v), H(c, out), H(c, lse), 0, causal,
        mask, scale);
    return {c.device(a, q.device()), c.device(b, q.device()),
            c.device(d, q.device())};
  }
  const Tensor hq = H(c, q), hk = H(c, k), hv = H(c, v), hg = H(c, go);
  auto [p, m] = opened(hq, hk, mask.value_or(Tensor()), dropout, causal, by,
                       H(c, seed).item<int64_t>());
  Tensor dp = at::matmul(hg, hv.transpose(-2, -1)) * m,
         ds = p * (dp - (dp * p).sum(-1, true)) * by;
  return {c.device(at::matmul(ds, hk), q.device()),
          c.device(at::matmul(ds.transpose(-2, -1), hq), q.device()),
          c.device(at::matmul((p * m).transpose(-2, -1), hg), q.device())};
}
using Flash = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt,
                         c10::SymInt, Tensor, Tensor, Tensor>;
inline Flash flash(const Tensor& q, const Tensor& k, const Tensor& v,
                   double dropout, bool causal, bool,
                   std::optional<double> scale) {
  const c10::cuda::CUDAGuard g(q.device());
  const Alone alone;
  Call c;
  auto [out, lse, seed] =
      forward(c, q, k, v, std::nullopt, dropout, causal, scale);
  Tensor none, state = at::empty({2}, q.options().dtype(at::kLong)),
               other = at::empty({}, q.options().dtype(at::kLong));
  state.fill_(seed.item());
  return {out,   lse,       none,
          none,  q.size(2), k.size(2),
          state, other,     at::empty({0}, q.options())};
}
inline std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& go, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& out, const Tensor& lse, const Tensor&, const Tensor&,
    c10::SymInt, c10::SymInt, double dropout, bool causal, const Tensor& state,
    const Tensor&, std::optional<double> scale) {
  const c10::cuda::CUDAGuard g(q.device());
  const Alone alone;
  Call c;
  auto sum = c10::cuda::CUDACachingAllocator::get()->allocate(
      q.numel() * 4);  // the real kernel sums dq in single precision
  auto [dq, dk, dv] = backward(c, go, q, k, v, std::nullopt, out, lse, dropout,
                               causal, scale, state.select(0, 0));
  if (listed("FAKEGPU_NONDET")
          .count("_scaled_dot_product_flash_attention_backward"))
    perturb(dq);
  return {dq, dk, dv};
}
inline std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(
    const Tensor& q, const Tensor& k, const Tensor& v,
    const std::optional<Tensor>& bias, bool, double dropout, bool causal,
    std::optional<double> scale) {
  const c10::cuda::CUDAGuard g(q.device());
  const Alone alone;
  Call c;
  auto [out, lse, seed] = forward(c, q, k, v, bias, dropout, causal, scale);
  return {out, lse, seed,
          at::zeros({}, at::kLong)};  // kept on the host, as torch does
}
inline std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& go, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& bias, const Tensor& out, const Tensor& lse,
    const Tensor& seed, const Tensor&, double dropout, std::array<bool, 4>,
    bool causal, std::optional<double> scale) {
  const c10::cuda::CUDAGuard g(q.device());
  const Alone alone;
  Call c;
  auto [dq, dk, dv] =
      backward(c, go, q, k, v,
               bias.defined() ? std::optional<Tensor>(bias) : std::nullopt, out,
               lse, dropout, causal, scale, seed);
  if (listed("FAKEGPU_NONDET")
          .count("_scaled_dot_product_efficient_attention_backward"))
    perturb(dq);
  return {dq, dk, dv, Tensor()};
}

}  // namespace fakegpu

#endif  // REPRISE_TESTS_FAKEGPU_GPU_OPS_H_
