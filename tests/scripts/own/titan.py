# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own trainer on CPUs: its debug model, Llama or Qwen with experts, its loss in
chunks, its checkpointing, compilation block by block, FSDP2 and clipping, over a few steps of data
that needs no download. Loss and norm of each step are printed to their last bit.

Its trainer knows GPUs alone. What has no CPU form is put in its place here: what it asks of a
device, FlexAttention, whose backward is for GPUs, and triton while modules that import it are read.
"""

import argparse
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import torch
import torch._functorch.partitioners  # before triton is stood in for, as they look for it
import torch._inductor.compile_fx  # noqa: F401
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F


class Cpu:
    """What torchtitan asks of a device, answered for a CPU."""

    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 64)
    get_device_name = staticmethod(lambda *_: "cpu")
    get_device_properties = staticmethod(lambda *_: SimpleNamespace(total_memory=1 << 34))
    memory_stats = staticmethod(lambda *_: {})
    empty_cache = reset_peak_memory_stats = set_device = synchronize = staticmethod(lambda *_: None)


TRITON = ("triton", "triton.language")
sys.modules |= {name: MagicMock() for name in TRITON}
with (
    patch("torch._utils._get_available_device_type", lambda: "cpu"),
    patch("torch._utils._get_device_module", lambda _: Cpu),
):
    import torchtitan.trainer  # noqa: F401
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.hf_datasets import DatasetConfig, text_datasets
    from torchtitan.models import llama3, qwen3
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    from torchtitan.models.qwen3.config_registry import qwen3_moe_debug
    from torchtitan.protocols.module import Module

for name in TRITON:
    del sys.modules[name]
from datasets import Dataset  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--ac", choices=("full", "selective"), help="torchtitan's own checkpointing")
parser.add_argument("--budget", help="by the policy of examples/torchtitan_budget.py")
parser.add_argument("--compile", help="backend")
parser.add_argument("--moe", action="store_true", help="a mixture of experts")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--tensorboard", help="folder of its log")
options = parser.parse_args()


class Causal(Module):
    """Attention to what came before, in the place of FlexAttention."""

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


class Bytes(BaseTokenizer):
    """A token for each byte."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        super().__init__()
        self.eos_id = 0

    def encode(self, text, add_bos=False, add_eos=False):
        return [1] * add_bos + [2 + byte for byte in text.encode()] + [0] * add_eos

    def decode(self, tokens):
        return bytes(token - 2 for token in tokens if token > 1).decode()

    def get_vocab_size(self):
        return 258


METRICS = MetricsProcessor
if options.budget:
    from torchtitan_budget import BudgetAC, BudgetMetrics

    METRICS = BudgetMetrics


class Printed(METRICS):
    """The metrics, printed to their last bit."""

    @dataclass(kw_only=True, slots=True)
    class Config(METRICS.Config):
        pass

    def log(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None):
        if distributed.get_rank() == 0:
            print(step, repr(global_avg_loss), repr(grad_norm), flush=True)
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)


def texts(_):
    return Dataset.from_dict({"text": [f"word {i} " * (20 + i % 37) for i in range(500)]})


text_datasets.DATASETS["words"] = DatasetConfig("words", texts, lambda sample: sample["text"])
for family in (llama3, qwen3):
    family.get_attention_config = lambda _: Causal.Config()
config = qwen3_moe_debug() if options.moe else llama3_debugmodel()
config.model_spec = (
    qwen3.model_registry("debugmodel_moe", attn_backend="")
    if options.moe
    else llama3.model_registry("debugmodel", attn_backend="")
)
config.tokenizer = Bytes.Config()
config.dataloader.dataset = "words"
config.training.steps = options.steps
config.training.seq_len = 256
config.training.local_batch_size = 4
config.training.mixed_precision_param = "float32"
config.parallelism.spmd_backend = "partial_dtensor"  # the default one needs PyTorch 2.14
config.checkpoint.enable = config.validator.enable = False
config.compile.enable = options.compile is not None
config.compile.backend = options.compile or "inductor"
config.debug.seed = 0
config.metrics = Printed.Config(log_freq=1, enable_tensorboard=options.tensorboard is not None)
config.dump_folder = options.tensorboard or "."
if options.budget:
    config.activation_checkpoint = BudgetAC.Config(budget=options.budget)
elif options.ac:
    config.activation_checkpoint = (FullAC if options.ac == "full" else SelectiveAC).Config()
else:
    config.activation_checkpoint = None
trainer = config.build()
for part in trainer.model_parts:
    for module in part.modules():  # gloo divides no gradients while it reduces them
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
if not hasattr(distributed, "set_timeout"):  # new in PyTorch 2.14
    distributed.set_timeout = lambda *_: None
try:
    trainer.train()
finally:
    trainer.close()
    distributed.destroy_process_group()
