// SPDX-License-Identifier: Apache-2.0
//
// Computes what CUDA kernels would: every CUDA kernel of torch is replaced by
// one that calls the CPU's. Allocations, streams, autograd's device threads,
// generators and everything in torch above them are those of the CUDA build.
//
//   FAKEGPU_CUBLAS_WORKSPACE  bytes kept per thread and stream from the first
//                             matrix product on (8519680, as below Hopper)
//   FAKEGPU_CONV_WORKSPACE    bytes[,bytes of the first call of a shape] that a
//                             convolution allocates (1 MiB)
//   FAKEGPU_NONDET            comma-separated ops whose results differ in the
//                             last bit from run to run
//   FAKEGPU_GARBAGE=1         memory that kernels leave unwritten holds random
//                             bytes
#include <dlfcn.h>

#include <chrono>

#include "gpu_ops.h"
#include "host_call.h"

namespace fakegpu {
namespace {

const std::set<std::string> kMatrix{
    "aten::mm",    "aten::addmm",   "aten::addmm_",
    "aten::bmm",   "aten::baddbmm", "aten::baddbmm_",
    "aten::addmv", "aten::linear",  "aten::_addmm_activation",
    "aten::dot",   "aten::addbmm"};

// Tells the fake CUPTI of tests/profiler, where it is preloaded, that a kernel
// begins now and takes as long as the CPU's took.
void launched(const std::string& name, std::chrono::nanoseconds took) {
  using Launch = uint32_t (*)(const char*, uint64_t);
  static const auto launch =
      reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "FakeCuptiLaunch"));
  // The names of operators stay as long as the process does.
  if (launch) launch(name.c_str(), static_cast<uint64_t>(took.count()));
}

void kernel(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
  const std::string& name = op.operator_name().name;
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto begin = stack->end() - (long)count;
  std::optional<c10::Device> found;
  for (auto v = begin; v != stack->end(); ++v) first_device(*v, found);
  const c10::Device where =
      found.value_or(c10::Device(at::kCUDA, c10::cuda::current_device()));
  const c10::cuda::CUDAGuard device_guard(where);
  const Alone alone;
  if (kMatrix.count(name)) cublas_workspace();
  if (name.find("convolution") != std::string::npos)
    conv_workspace(name, Stack(begin, stack->end()));
  Call call;
  Stack args;
  bool blocking_copy = false;
  for (size_t i = 0; i < count; ++i)
    args.push_back(call.host(begin[(long)i], schema.arguments()[i].is_out()));
  if (name == "aten::copy_" && begin[0].isTensor() && begin[1].isTensor())
    blocking_copy =
        begin[0].toTensor().is_cuda() != begin[1].toTensor().is_cuda() &&
        !begin[2].toBool();
  const Stack written(begin, stack->end());
  stack->erase(begin, stack->end());
  {
    const Random random(op, args, where);
    const auto began = std::chrono::steady_clock::now();
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &args);
    launched(name, std::chrono::steady_clock::now() - began);
  }
  // Torch's own kernels for lists increment the version counters themselves,
  // all except _foreach_zero_.
  if (name.rfind("aten::_foreach_", 0) == 0 && name != "aten::_foreach_zero_")
    for (size_t i = 0; i < count; ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias && alias->isWrite() && written[i].isTensorList())
        for (const Tensor& t : written[i].toTensorVector())
          t.unsafeGetTensorImpl()->bump_version();
    }
  for (auto& [out, fresh] : call.grown) {
    if (out.sizes() != fresh.sizes()) out.resize_(fresh.sizes());
    if (fresh.numel()) call.host(out).copy_(fresh);
  }
  static const auto& nondet = listed("FAKEGPU_NONDET");
  for (IValue& v : args) {
    IValue made = call.device(v, where);
    if (!nondet.empty() && nondet.count(name.substr(6))) {
      if (made.isTensor()) perturb(made.toTensor());
      if (made.isTensorList())
        for (const Tensor& t : made.toTensorVector()) perturb(t);
    }
    stack->push_back(std::move(made));
  }
  if (blocking_copy) c10::cuda::getCurrentCUDAStream().synchronize();
}

template <typename F>
void put(const char* name, const char* overload, F* f) {
  auto& d = c10::Dispatcher::singleton();
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
  kept->push_back(
      d.registerImpl({name, overload}, DispatchKey::CUDA,
                     c10::KernelFunction::makeFromUnboxedRuntimeFunction(f),
                     std::nullopt, nullptr, "fakegpu"));
}
}  // namespace
}  // namespace fakegpu

extern "C" __attribute__((visibility("default"))) int fakegpu_install() {
  using namespace fakegpu;
  static const std::set<std::string> own{
      "aten::cudnn_batch_norm",
      "aten::cudnn_batch_norm_backward",
      "aten::_fused_sdp_choice",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_flash_attention_backward",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_efficient_attention_backward"};
  static const std::set<std::string> stay{"aten::_local_scalar_dense",
                                          "aten::record_stream",
                                          "aten::is_set_to",
                                          "aten::is_pinned",
                                          "aten::_pin_memory",
                                          "aten::_cudnn_init_dropout_state",
                                          "aten::_has_same_storage_numel",
                                          "aten::_use_cudnn_ctc_loss"};
  static const std::set<std::string> more{
      "aten::convolution", "aten::convolution_backward", "aten::copy_"};
  auto& d = c10::Dispatcher::singleton();
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
  int n = 0;
  for (const auto& name : d.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = d.findOp(name);
    if (!op || !op->hasSchema() || own.count(name.name) ||
        stay.count(name.name))
      continue;
    const bool wanted = op->hasKernelForDispatchKey(DispatchKey::CUDA) ||
                        (more.count(name.name) && name.overload_name.empty());
    if (!wanted) continue;
    const std::string short_name = name.name.substr(6);
    if (short_name.rfind("empty", 0) == 0 || short_name.rfind("set_", 0) == 0 ||
        short_name.rfind("resize", 0) == 0 ||
        short_name.rfind("_nested", 0) == 0 ||
        short_name.rfind("_resize", 0) == 0)
      continue;
    const auto& returns = op->schema().returns();
    bool view = !returns.empty();
    for (const auto& r : returns)
      view &= r.alias_info() != nullptr && !r.alias_info()->isWrite();
    if (view) continue;
    kept->push_back(
        d.registerImpl(name, DispatchKey::CUDA,
                       c10::KernelFunction::makeFromBoxedFunction<&kernel>(),
                       std::nullopt, nullptr, "fakegpu"));
    ++n;
  }
  put("aten::cudnn_batch_norm", "", &cudnn_batch_norm);
  put("aten::cudnn_batch_norm_backward", "", &cudnn_batch_norm_backward);
  put("aten::_scaled_dot_product_flash_attention", "", &flash);
  put("aten::_scaled_dot_product_flash_attention_backward", "",
      &flash_backward);
  put("aten::_scaled_dot_product_efficient_attention", "", &efficient);
  put("aten::_scaled_dot_product_efficient_attention_backward", "",
      &efficient_backward);
  return n;
}
