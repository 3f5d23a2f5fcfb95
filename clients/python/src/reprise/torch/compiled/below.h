// SPDX-License-Identifier: Apache-2.0
//
// Runs Reprise's own calls below autograd, autocast, every dispatch mode and
// the gate, so that none of them sees these calls.
#ifndef REPRISE_TORCH_COMPILED_BELOW_H_
#define REPRISE_TORCH_COMPILED_BELOW_H_

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace reprise_fast {

using c10::DispatchKey;
using c10::DispatchKeySet;

// The gate's dispatch key: directly below Python, the key at which dispatch
// modes see ops. torch reserves it for a FakeTensor mode written in C++; Setup
// refuses a torch that has one.
constexpr DispatchKey kGate = DispatchKey::Fake;

// Leaves inference mode: a backward may run in it, but what is recomputed for
// it are the tensors of a forward that did not.
struct NoInference {
  std::optional<c10::InferenceMode> off;
  NoInference() {
    if (c10::InferenceMode::is_enabled()) off.emplace(false);
  }
};

// While an Alone is alive, nothing observes the calls of this thread. The grad
// mode is unchanged.
struct Alone {
  NoInference plainly;  // before the keys that the others exclude
  at::AutoDispatchBelowAutograd autograd;
  c10::impl::ExcludeDispatchKeyGuard rest;
  c10::AutoGradMode grad;
  Alone()
      : rest(
            c10::autocast_dispatch_keyset |
            DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                            DispatchKey::PreDispatch, kGate})),
        grad(c10::GradMode::is_enabled()) {}
};

// Returns an alias of `t` that has no grad_fn and shares its version counter.
inline at::Tensor AliasBelow(const at::Tensor& t) {
  // If a dispatch mode is on the stack, shallow_copy_and_detach would ask it,
  // even when the thread's dispatch keys exclude Python.
  const c10::impl::ExcludeDispatchKeyGuard unseen(DispatchKey::Python);
  c10::TensorImpl* const impl = t.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(
      impl->version_counter(), /*allow_tensor_metadata_change=*/false));
}

// Returns `t`, or an alias without grad_fn if it has one: the tensor that a
// record may hold.
inline at::Tensor FirstLife(const at::Tensor& t) {
  // A tensor with a grad_fn would keep autograd's graph alive, and the graph
  // owns this record.
  return t.grad_fn() == nullptr ? t : AliasBelow(t);
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_BELOW_H_
