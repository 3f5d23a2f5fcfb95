# SPDX-License-Identifier: Apache-2.0
"""Pieces of torchtitan as its trainer puts them together, on the CPU: its small Llama or Qwen with
experts, its checkpointing, compilation block by block, FSDP2 on two ranks, its loss, clipping and
container of optimizers, gradients of two batches.

What has no CPU form is left out: attention is a plain causal one instead of FlexAttention, whose
backward is for GPUs, and triton is stood in for while the modules that import it are read.
"""

import argparse
import sys
from dataclasses import dataclass
from unittest.mock import MagicMock

import torch
import torch._functorch.partitioners
import torch._inductor.compile_fx
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F

_NONE = ("triton", "triton.language")
sys.modules |= {name: MagicMock() for name in _NONE}
from torchtitan.components.loss import cross_entropy_loss  # noqa: E402
from torchtitan.components.optimizer import default_adamw  # noqa: E402
from torchtitan.config import CompileConfig, ParallelismConfig  # noqa: E402
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa: E402
from torchtitan.distributed.compile import apply_compile  # noqa: E402
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder  # noqa: E402
from torchtitan.distributed.parallel_dims import ParallelDims  # noqa: E402
from torchtitan.distributed.utils import clip_grad_norm_  # noqa: E402
from torchtitan.models import llama3, qwen3  # noqa: E402
from torchtitan.protocols.module import Module  # noqa: E402

for name in _NONE:
    del sys.modules[name]

parser = argparse.ArgumentParser()
parser.add_argument("--ac", choices=("full", "selective"))
parser.add_argument("--compile", help="backend")
parser.add_argument("--moe", action="store_true", help="a mixture of experts")
options = parser.parse_args()
ranks = distributed.is_torchelastic_launched()


class Causal(Module):
    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        pass

    def __init__(self, config):
        super().__init__()

    def forward(self, q, k, v, *, scale=None, enable_gqa=False, **_):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, scale=scale, is_causal=True, enable_gqa=enable_gqa
        )
        return out[0].transpose(0, 1)


for family in (llama3, qwen3):
    family.get_attention_config = lambda _: Causal.Config()
if options.moe:
    # With 8 experts instead of 64: beside so many parameters activations are nothing.
    layers = qwen3._build_qwen3_moe_layers
    qwen3._build_qwen3_moe_layers = lambda **how: layers(
        **how | {"num_experts": 8, "top_k": 2, "moe_hidden_dim": 256}
    )
    config = qwen3._debugmodel_moe("")
else:
    config = llama3._debugmodel("")
config.layers = config.layers[:3]
model = config.build()
torch.manual_seed(0)
model.init_states()
if options.ac:
    (FullAC if options.ac == "full" else SelectiveAC).Config().build().apply(model)
if options.compile:
    dims = ParallelDims.from_config(ParallelismConfig(data_parallel_shard_degree=1), 1)
    compiled = CompileConfig(enable=True, backend=options.compile)
    apply_compile(model, compile_config=compiled, parallel_dims=dims)
if ranks:
    distributed.init_process_group("gloo")
    apply_fsdp_to_decoder(
        model,
        init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("fsdp",)),
        param_dtype=torch.float32,
        reduce_dtype=torch.float32,
        pp_enabled=False,
    )
    for module in model.modules():  # gloo divides no gradients while it reduces them
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
optimizers = default_adamw().build(model_parts=[model])
rank = distributed.get_rank() if ranks else 0
torch.manual_seed(rank)
length = 1024 if options.moe else 256
for step in range(12):
    optimizers.zero_grad()
    total = 0.0
    for _ in range(2):
        tokens = torch.randint(0, config.vocab_size, (length + 1,))
        pred = model(tokens[:-1], positions=torch.arange(length))
        loss = cross_entropy_loss(pred, tokens[1:]) / (2 * length)
        del pred
        loss.backward()
        total += loss.detach()
    norm = clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
    optimizers.step()
    if rank == 0:
        print(step, repr(total.item()), repr(float(norm)), flush=True)
if ranks:
    distributed.barrier()
    distributed.destroy_process_group()
