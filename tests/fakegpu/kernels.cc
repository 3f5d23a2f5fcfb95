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
#include <memory>

#include "freed.h"
#include "gpu_ops.h"
#include "host_call.h"
#include "kernel.h"

namespace fakegpu {
namespace {

const std::set<std::string> kMatrix{
    "aten::mm",    "aten::addmm",   "aten::addmm_",
    "aten::bmm",   "aten::baddbmm", "aten::baddbmm_",
    "aten::addmv", "aten::linear",  "aten::_addmm_activation",
    "aten::dot",   "aten::addbmm"};

// Kernels of gpu_ops.h by name.
std::map<std::string, c10::KernelFunction>& own_kernels() {
  static auto* kept = new std::map<std::string, c10::KernelFunction>;
  return *kept;
}

// Tells the fake CUPTI of tests/profiler, where it is preloaded, that a kernel
// begins now and takes as long as the CPU's took.
void launched(const std::string& name, std::chrono::nanoseconds took) {
  using Launch = uint32_t (*)(const char*, uint64_t);
  static const auto launch =
      reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "FakeCuptiLaunch"));
  // The names of operators stay as long as the process does.
  if (launch) launch(name.c_str(), static_cast<uint64_t>(took.count()));
}

// Copies between the host and a device are torch's own, with its streams, events
// and temporaries. Returns whether it was one.
bool copied_by_torch(const std::string& name, const Stack& given) {
  if (name != "aten::copy_" && name != "aten::_foreach_copy_") return false;
  const auto to = tensors_of(given[0]), from = tensors_of(given[1]);
  bool crosses = false;
  for (size_t i = 0; i < to.size(); ++i)
    crosses |= to[i].is_cuda() != from[i].is_cuda();
  for (size_t i = 0; crosses && i < to.size(); ++i) {
    Tensor target = to[i];
    at::native::copy_(target, from[i], given[2].toBool());
  }
  return crosses;
}

void kernel(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
  const std::string& name = op.operator_name().name;
  const auto& schema = op.schema();
  const auto begin = stack->end() - (long)schema.arguments().size();
  Stack given(begin, stack->end());
  stack->erase(begin, stack->end());
  std::optional<c10::Device> found;
  for (const IValue& v : given) first_device(v, found);
  const c10::Device where =
      found.value_or(c10::Device(at::kCUDA, c10::cuda::current_device()));
  const c10::cuda::CUDAGuard device_guard(where);
  const Alone alone;
  watch_device_blocks();
  if (kMatrix.count(name)) cublas_workspace();
  if (name.find("convolution") != std::string::npos)
    conv_workspace(name, given);
  if (name == "aten::_scaled_dot_product_flash_attention_backward")
    // The real kernel sums dq in single precision.
    c10::cuda::CUDACachingAllocator::get()->allocate(
        given[1].toTensor().numel() * 4);
  std::optional<Stack> made;
  if (copied_by_torch(name, given)) {
    made.emplace();
    if (!schema.returns().empty()) made->push_back(given[0]);
  } else {
    const auto began = std::chrono::steady_clock::now();
    const auto known = own_kernels().find(name);
    const Own own = known == own_kernels().end() ? nullptr : &known->second;
    const Kernel one{op, name, schema, given, where, {op, given.data(), where},
                     own};
    const bool waits = one.can_wait();
    const bool captures = Captures(stream());
    if ((captures || !AtOnce()) && waits) made = one.later();
    // The host would have to wait, or its memory would be written.
    TORCH_CHECK(made || !captures, "CUDA error: operation not permitted when ",
                "stream is capturing (", name, ")");
    if (!made) {
      if (!waits) SettleAll();  // its tensors may be of several devices
      made = one.now();
    }
    launched(name, std::chrono::steady_clock::now() - began);
  }
  // Torch's own kernels for lists increment the version counters themselves,
  // all except _foreach_zero_.
  if (name.rfind("aten::_foreach_", 0) == 0 && name != "aten::_foreach_zero_")
    for (size_t i = 0; i < given.size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias && alias->isWrite() && given[i].isTensorList())
        for (const Tensor& t : given[i].toTensorVector())
          t.unsafeGetTensorImpl()->bump_version();
    }
  for (IValue& v : *made) stack->push_back(std::move(v));
}

void replace(const c10::OperatorName& name) {
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;
  kept->push_back(c10::Dispatcher::singleton().registerImpl(
      name, DispatchKey::CUDA,
      c10::KernelFunction::makeFromBoxedFunction<&kernel>(), std::nullopt,
      nullptr, "fakegpu"));
}

template <typename F>
void put(const char* name, F* f) {
  own_kernels()[name] = c10::KernelFunction::makeFromUnboxedRuntimeFunction(f);
  replace({name, ""});
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
    replace(name);
    ++n;
  }
  watch_pinned_blocks();
  put("aten::cudnn_batch_norm", &cudnn_batch_norm);
  put("aten::cudnn_batch_norm_backward", &cudnn_batch_norm_backward);
  put("aten::_scaled_dot_product_flash_attention", &flash);
  put("aten::_scaled_dot_product_flash_attention_backward", &flash_backward);
  put("aten::_scaled_dot_product_efficient_attention", &efficient);
  put("aten::_scaled_dot_product_efficient_attention_backward",
      &efficient_backward);
  return n;
}
