// SPDX-License-Identifier: Apache-2.0
//
// A call of a CUDA kernel: the CPU's kernel on the same bytes, now or in the
// order of its stream, with the random numbers that the CUDA op would draw.
#ifndef REPRISE_TESTS_FAKEGPU_KERNEL_H_
#define REPRISE_TESTS_FAKEGPU_KERNEL_H_

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "host_call.h"

namespace fakegpu {

// A kernel of gpu_ops.h; null: the CPU's.
using Own = const c10::KernelFunction*;

// The random numbers of a call: drawn by the CPU, from the CUDA generator's seed
// and offset, which then moves on. In a graph each launch has others: they are
// read when the kernel runs.
struct Random {
  int generator = -1;  // the argument that is one
  bool draws = false;
  at::PhiloxCudaState state;
  Random(const c10::OperatorHandle& op, const IValue* args, c10::Device where) {
    const auto& schema = op.schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i)
      if (schema[i].type()->str().find("Generator") != std::string::npos)
        generator = (int)i, draws = true;
    for (const auto tag : op.getTags())
      draws |= tag == at::Tag::nondeterministic_seeded;
    for (size_t i = 0; i < schema.size(); ++i)
      if (schema[i].name() == "dropout_p" && args[i].toDouble() == 0)
        draws = false;
    if (!draws) return;
    at::Generator gen =
        generator >= 0 && args[generator].isGenerator()
            ? args[generator].toGenerator()
            : at::cuda::detail::getDefaultCUDAGenerator(where.index());
    draws = !gen.device().is_cpu();
    if (!draws) return;
    size_t numel = 0;
    for (size_t i = 0; i < schema.size(); ++i)
      if (args[i].isTensor() && args[i].toTensor().defined()) {
        numel = args[i].toTensor().numel();
        break;
      }
    const std::lock_guard<std::mutex> g(gen.mutex());
    auto* impl = at::check_generator<at::CUDAGeneratorImpl>(gen);
    state = impl->philox_cuda_state(4 * (1 + numel / (108 * 2048)));
  }
  uint64_t seed() const {
    const auto& [from, offset] = std::pair(state.seed_, state.offset_);
    const bool graph = state.captured_;
    return ((graph ? (uint64_t)*from.ptr : from.val) * 0x9E3779B97F4A7C15ull) ^
           ((graph ? (uint64_t)*offset.ptr + state.offset_intragraph_
                   : offset.val) *
            0xD1B54A32D192ED03ull);
  }
  // Runs the kernel, which draws the same numbers each time.
  void run(const c10::OperatorHandle& op, Own own, Stack& args) const {
    const DispatchKeySet host(DispatchKey::CPU);
    const bool swaps = draws && generator < 0;
    auto cpu = at::detail::getDefaultCPUGenerator();
    const Tensor before = swaps ? cpu.get_state() : Tensor();
    if (swaps) cpu.set_current_seed(seed());
    if (draws && !swaps)
      args[generator] = IValue(at::detail::createCPUGenerator(seed()));
    try {
      own ? own->callBoxed(op, host, &args) : op.redispatchBoxed(host, &args);
    } catch (...) {
      if (swaps) cpu.set_state(before);
      throw;
    }
    if (swaps) cpu.set_state(before);
  }
};

inline void perturb(const Tensor& t) {
  if (!t.defined() || t.numel() == 0 || !t.is_floating_point() ||
      !t.is_non_overlapping_and_dense())
    return;
  static std::mt19937_64 random(std::random_device{}());
  auto* bytes = static_cast<unsigned char*>(t.data_ptr());
  for (int i = 0; i < 4; ++i)
    bytes[(random() % t.numel()) * t.element_size()] ^= 1;
}

// Torch keeps its seed and offset, the last two results, in host memory.
inline const std::string kSeedsOnHost =
    "aten::_scaled_dot_product_efficient_attention";

// Makes the last bits of results differ from run to run if they would on a GPU.
inline void perturb_if_listed(const std::string& name, const Tensor& made) {
  static const auto& nondet = listed("FAKEGPU_NONDET");
  if (!nondet.empty() && nondet.count(name.substr(6))) perturb(made);
}

inline std::vector<Tensor> tensors_of(const IValue& v) {
  if (v.isTensor()) return {v.toTensor()};
  return v.isTensorList() ? v.toTensorVector() : std::vector<Tensor>();
}

// One call of an operator.
struct Kernel {
  const c10::OperatorHandle& op;
  const std::string& name;
  const c10::FunctionSchema& schema;
  const Stack given;
  const c10::Device where;
  const Random random;
  const Own own;

  // Runs the kernel now and returns its results.
  Stack now() const {
    Call call;
    Stack args = on_host(call);
    random.run(op, own, args);
    for (auto& [out, fresh] : call.grown) {
      if (out.sizes() != fresh.sizes()) out.resize_(fresh.sizes());
      Settle(stream());
      if (fresh.numel()) call.host(out).copy_(fresh);
    }
    Stack made;
    for (const IValue& v : args) {
      const bool stays = name == kSeedsOnHost && made.size() >= 2;
      made.push_back(stays ? v : call.device(v, where));
      if (stays) continue;
      for (const Tensor& t : tensors_of(made.back()))
        perturb_if_listed(name, t);
    }
    return made;
  }

  // Whether the host learns nothing from the kernel that only its run can tell.
  bool can_wait() const {
    for (const auto tag : op.getTags())
      if (tag == at::Tag::dynamic_output_shape ||
          tag == at::Tag::data_dependent_output)
        return false;
    for (const auto& one : schema.returns()) {
      const bool list = one.type()->kind() == c10::TypeKind::ListType;
      const auto type =
          list ? one.type()->castRaw<c10::ListType>()->getElementType()
               : one.type();
      // The numbers that attention returns are sizes.
      if (own == nullptr && type->kind() != c10::TypeKind::TensorType)
        return false;
    }
    for (size_t i = 0; i < given.size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      const bool written = alias != nullptr && alias->isWrite();
      for (const Tensor& t : tensors_of(given[i])) {
        if (!t.defined()) continue;
        const bool other = t.is_cuda() && t.device() != where;
        if (other || (written && !t.is_cuda())) return false;
      }
    }
    return true;
  }

  // Gives the kernel to its stream and returns what its results will be. What
  // they look like is known from a run on zeros; none if that run fails.
  std::optional<Stack> later() const {
    Call shapes(Call::kShapes);
    Stack args = on_host(shapes);
    try {
      random.run(op, own, args);
    } catch (const std::exception&) {
      return std::nullopt;
    }
    for (auto& [out, fresh] : shapes.grown)
      if (out.sizes() != fresh.sizes()) out.resize_(fresh.sizes());
    Stack made;
    Call call(Call::kLater);
    std::vector<Tensor> places;  // of the results; undefined: an argument's
    for (const IValue& v : args)
      if (name == kSeedsOnHost && made.size() >= 2) {
        made.push_back(v);
        places.emplace_back();
      } else if (v.isTensor()) {
        made.push_back(place(shapes, call, v.toTensor(), places));
      } else if (!v.isTensorList()) {
        made.push_back(v);
      } else {
        c10::List<Tensor> list;
        for (const Tensor& t : v.toTensorVector())
          list.push_back(place(shapes, call, t, places));
        made.push_back(list);
      }
    Submit(stream(), [op = op, random = random, own = own, places,
                      given = on_host(call)] {
      const Alone alone;
      Stack args = given;  // a graph runs it again and again
      random.run(op, own, args);
      auto place = places.begin();
      for (const IValue& v : args)
        for (const Tensor& t : tensors_of(v)) {
          perturb_if_listed(op.operator_name().name, t);
          if (place->defined()) place->copy_(t);
          ++place;
        }
    });
    return made;
  }

 private:
  Stack on_host(Call& call) const {
    Stack args;
    for (size_t i = 0; i < given.size(); ++i)
      args.push_back(call.host(given[i], schema.arguments()[i].is_out()));
    return args;
  }
  Tensor place(Call& shapes, Call& call, const Tensor& shape,
               std::vector<Tensor>& places) const {
    const size_t before = shapes.fresh.size();
    const Tensor made = shapes.device(shape, where);
    const bool fresh = shapes.fresh.size() > before;
    places.push_back(fresh ? call.host(made) : Tensor());
    return made;
  }
};

}  // namespace fakegpu

#endif  // REPRISE_TESTS_FAKEGPU_KERNEL_H_
