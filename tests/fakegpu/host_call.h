// SPDX-License-Identifier: Apache-2.0
//
// One call of a CUDA op, run by the CPU's kernel on the same bytes: the fake's
// device memory is host memory. It also makes the allocations that the CUDA op
// would.
#ifndef REPRISE_TESTS_FAKEGPU_HOST_CALL_H_
#define REPRISE_TESTS_FAKEGPU_HOST_CALL_H_

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>

#include "runtime.h"

namespace fakegpu {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using Stack = torch::jit::Stack;

struct Alone {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard rest{
      c10::autocast_dispatch_keyset |
      DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                      DispatchKey::PreDispatch, DispatchKey::Fake})};
};

inline size_t number(const char* name, size_t otherwise, int which = 0) {
  const char* text = getenv(name);
  if (!text) return otherwise;
  if (which) {
    const char* comma = strchr(text, ',');
    if (!comma) return otherwise;
    text = comma + 1;
  }
  return strtoull(text, nullptr, 10);
}
inline const std::set<std::string>& listed(const char* name) {
  static std::map<std::string, std::set<std::string>> known;
  auto it = known.find(name);
  if (it != known.end()) return it->second;
  std::set<std::string> found;
  std::string text = getenv(name) ? getenv(name) : "", one;
  for (char c : text + ",") {
    if (c == ',') {
      if (!one.empty()) found.insert(one);
      one.clear();
    } else
      one += c;
  }
  return known[name] = found;
}

// The stream on which the current thread calls kernels.
inline cudaStream_t stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

// Makes host tensors over a call's device tensors and turns the results back
// into device tensors.
struct Call {
  enum When {
    kNow,     // the kernel runs now, after what its stream had to do
    kLater,   // it runs later: device memory is not touched, host tensors are
              // read now, and nothing that was allocated is kept
    kShapes,  // it runs on zeros, to know what its results will look like
  };
  const When when;
  explicit Call(When when = kNow) : when(when) {
    if (when == kNow) Settle(stream());
  }

  std::unordered_map<const c10::StorageImpl*, c10::Storage>
      storages;  // device storage -> host storage
  std::unordered_map<const c10::StorageImpl*, Tensor>
      originals;  // host storage -> an original tensor
  std::unordered_map<const c10::TensorImpl*, Tensor>
      same;  // host tensor -> the original it stands for
  std::vector<std::pair<Tensor, Tensor>>
      grown;                  // empty out= tensors: device, host
  std::vector<Tensor> fresh;  // device tensors that were allocated

  Tensor host(const Tensor& t) {
    if (!t.defined()) return t;
    if (!t.is_cuda()) return when == kLater ? read(t) : t;
    TORCH_CHECK(t.layout() == at::kStrided, "fakegpu: a tensor of layout ",
                t.layout());
    const auto* impl = t.storage().unsafeGetStorageImpl();
    auto it = storages.find(impl);
    if (it == storages.end()) {
      const size_t bytes = t.storage().nbytes();
      at::DataPtr data(t.storage().mutable_data(), at::Device(at::kCPU));
      if (when == kShapes) {
        data = at::getCPUAllocator()->allocate(bytes);
        std::memset(data.get(), 0, bytes);
      }
      it = storages
               .emplace(impl,
                        c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                                     std::move(data), nullptr, false))
               .first;
      if (when != kLater) originals[it->second.unsafeGetStorageImpl()] = t;
    }
    Tensor r = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(it->second), DispatchKeySet(DispatchKey::CPU), t.dtype());
    r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(),
                                                   t.storage_offset());
    if (t.is_conj()) r._set_conj(true);
    if (t.is_neg()) r._set_neg(true);
    if (t.unsafeGetTensorImpl()->is_wrapped_number())
      r.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (when != kLater) same[r.unsafeGetTensorImpl()] = t;
    return r;
  }
  static Tensor read(const Tensor& t) {
    Tensor r = t.clone();
    if (t.unsafeGetTensorImpl()->is_wrapped_number())
      r.unsafeGetTensorImpl()->set_wrapped_number(true);
    return r;
  }
  Tensor device(const Tensor& r, c10::Device where) {
    if (!r.defined()) return r;
    auto known = same.find(r.unsafeGetTensorImpl());
    if (known != same.end()) return known->second;
    if (!r.is_cpu()) return r;
    auto alias = r.has_storage()
                     ? originals.find(r.storage().unsafeGetStorageImpl())
                     : originals.end();
    if (alias != originals.end())
      return alias->second.as_strided(r.sizes(), r.strides(),
                                      r.storage_offset());
    Tensor out =
        at::empty_strided(r.sizes(), r.strides(), r.options().device(where));
    if (when == kShapes) {
      fresh.push_back(out);
    } else if (r.numel()) {
      Settle(stream());  // what was in this memory before may still be due
      host(out).copy_(r);
    }
    return out;
  }
  IValue host(const IValue& v, bool out) {
    if (v.isTensor()) {
      const Tensor& t = v.toTensor();
      if (out && t.defined() && t.is_cuda() && t.numel() == 0) {
        Tensor fresh = at::empty({0}, t.options().device(at::kCPU));
        grown.emplace_back(t, fresh);
        same[fresh.unsafeGetTensorImpl()] = t;
        return fresh;
      }
      return host(t);
    }
    if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : v.toTensorVector()) list.push_back(host(t));
      return list;
    }
    if (v.isList() && !v.isIntList() && !v.isDoubleList() && !v.isBoolList()) {
      auto list = v.toList().copy();
      for (size_t i = 0; i < list.size(); ++i) {
        IValue one = list.get(i);
        if (one.isTensor()) list.set(i, host(one, out));
      }
      return list;
    }
    if (v.isDevice() && v.toDevice().is_cuda()) return c10::Device(at::kCPU);
    return v;
  }
  IValue device(const IValue& v, c10::Device where) {
    if (v.isTensor()) return device(v.toTensor(), where);
    if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : v.toTensorVector())
        list.push_back(device(t, where));
      return list;
    }
    return v;
  }
};

inline void first_device(const IValue& v, std::optional<c10::Device>& found) {
  if (found) return;
  if (v.isTensor()) {
    if (v.toTensor().defined() && v.toTensor().is_cuda())
      found = v.toTensor().device();
  } else if (v.isTensorList()) {
    for (const Tensor& t : v.toTensorVector())
      if (!found && t.defined() && t.is_cuda()) found = t.device();
  } else if (v.isList() && !v.isIntList() && !v.isDoubleList() &&
             !v.isBoolList()) {
    for (const IValue& x : v.toListRef()) first_device(x, found);
  } else if (v.isDevice() && v.toDevice().is_cuda())
    found = v.toDevice();
}

// ---- Allocations that a kernel makes
inline void cublas_workspace() {
  static const size_t bytes = number("FAKEGPU_CUBLAS_WORKSPACE", 8519680);
  if (!bytes) return;
  static std::mutex lock;
  static auto* kept =
      new std::map<std::pair<std::thread::id, void*>, at::DataPtr>;
  const std::pair<std::thread::id, void*> key{
      std::this_thread::get_id(),
      (void*)c10::cuda::getCurrentCUDAStream().stream()};
  const std::lock_guard<std::mutex> g(lock);
  if (!kept->count(key))
    (*kept)[key] = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
}
inline void conv_workspace(const std::string& name, const Stack& stack) {
  static const size_t bytes = number("FAKEGPU_CONV_WORKSPACE", 1 << 20),
                      first = number("FAKEGPU_CONV_WORKSPACE", bytes, 1);
  static std::mutex lock;
  static std::set<std::string> seen;
  std::string key = name;
  for (const IValue& v : stack)
    if (v.isTensor() && v.toTensor().defined())
      key += c10::str(v.toTensor().sizes());
  bool fresh;
  {
    const std::lock_guard<std::mutex> g(lock);
    fresh = seen.insert(key).second;
  }
  const size_t n = fresh ? first : bytes;
  if (n) auto gone = c10::cuda::CUDACachingAllocator::get()->allocate(n);
}
}  // namespace fakegpu

#endif  // REPRISE_TESTS_FAKEGPU_HOST_CALL_H_
