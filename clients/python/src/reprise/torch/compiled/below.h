// SPDX-License-Identifier: Apache-2.0
//
// Where calls of our own run: below autograd, autocast, every mode and the
// gate.
#ifndef REPRISE_TORCH_COMPILED_BELOW_H_
#define REPRISE_TORCH_COMPILED_BELOW_H_

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace reprise_fast {

using c10::DispatchKey;
using c10::DispatchKeySet;

// Right below Python, where a dispatch mode sees ops. Meant for a FakeTensor
// mode written in C++; Setup refuses a torch that has one.
constexpr DispatchKey kGate = DispatchKey::Fake;

// While it lives, nobody sees what this thread calls. The grad mode stays.
struct Alone {
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

// An alias without grad_fn that shares the version counter.
inline at::Tensor AliasBelow(const at::Tensor& t) {
  // A mode on the stack is asked otherwise, whatever the thread's keys are.
  const c10::impl::ExcludeDispatchKeyGuard unseen(DispatchKey::Python);
  c10::TensorImpl* const impl = t.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(
      impl->version_counter(), /*allow_tensor_metadata_change=*/false));
}

inline at::Tensor FirstLife(const at::Tensor& t) {
  // One with a grad_fn would keep autograd's graph alive, and through it this.
  return t.grad_fn() == nullptr ? t : AliasBelow(t);
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_BELOW_H_
