# SPDX-License-Identifier: Apache-2.0
"""The jobs: one function for each way to train on several ranks.

job = JOBS["fsdp2"].make()          # on every rank, after init_process_group
loss = job.step(number)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from networks import LENGTH, VOCABULARY, WIDTH, Block, Decoder, batch_of, loss_of
from torch import Tensor, distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp import MixedPrecision as OldMixedPrecision
from torch.distributed.fsdp import ShardingStrategy as Sharding
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

__all__ = ["JOBS", "Job", "Made", "job"]


@dataclass(frozen=True, slots=True)
class Made:
    """A job on one rank: what `reprise.auto` gets, what changes in training, and one step."""

    arm: list[nn.Module]
    parameters: Callable[[], Iterable[Tensor]]
    step: Callable[[int], Tensor | None]


@dataclass(frozen=True, slots=True)
class Job:
    """How a job is made, for how many ranks, and the budget that is asked for."""

    make: Callable[[], Made]
    ranks: int = 2
    budget: str = "0.6x"


JOBS: dict[str, Job] = {}


def job(name: str, ranks: int = 2, budget: str = "0.6x") -> Callable[..., Any]:
    """Adds a function that makes a job to `JOBS`."""

    def add(make: Callable[[], Made]) -> Callable[[], Made]:
        JOBS[name] = Job(make, ranks, budget)
        return make

    return add


def tokens(ranks_differ: bool = True) -> torch.Generator:
    """Returns the generator of a rank's data."""
    generator = torch.Generator()
    return generator.manual_seed(100 + (distributed.get_rank() if ranks_differ else 0))


def loop(
    arm: nn.Module,
    call: nn.Module | None = None,
    *,
    micro_batches: int = 1,
    pause: Callable[[bool], Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    ranks_differ: bool = True,
    clip: bool = False,
) -> Made:
    """Returns the usual loop. `pause(last)` is called or entered around each micro-batch."""
    model = call or arm
    generator = tokens(ranks_differ)
    adam = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def step(_: int) -> Tensor:
        adam.zero_grad()
        loss = torch.zeros(())
        for number in range(micro_batches):
            batch = batch_of(generator)
            with (pause(number == micro_batches - 1) if pause else None) or nullcontext():
                loss = loss_of(model(batch[:, :LENGTH]), batch[:, 1:]) / micro_batches
                loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        return loss.detach()

    return Made([arm], model.parameters, step)


# ---- Copies of the model -----------------------------------------------------------------


def copies(pausing: int = 1, **options: Any) -> Made:
    """Makes a job under DistributedDataParallel."""
    inner = Decoder()
    model = DistributedDataParallel(inner, **options)
    pause = (lambda last: nullcontext() if last else model.no_sync()) if pausing > 1 else None
    return loop(inner, model, micro_batches=pausing, pause=pause)


job("ddp")(copies)
job("ddp-static-graph")(lambda: copies(static_graph=True))
job("ddp-unused-parameters")(lambda: copies(find_unused_parameters=True))
job("ddp-accumulation")(lambda: copies(3))


def checkpointed() -> Decoder:
    """Returns the model, of which the program itself checkpoints every second block."""
    model = Decoder()
    every_second = list(model.blocks)[::2]
    apply_activation_checkpointing(model, check_fn=lambda m: m in every_second)
    return model


@job("ddp-checkpointed", budget="0.75x")
def ddp_checkpointed() -> Made:
    """Every second block is checkpointed."""
    inner = checkpointed()
    return loop(inner, DistributedDataParallel(inner))


@job("zero1")
def zero1() -> Made:
    """Each rank steps some of the parameters and sends them to the others."""
    inner = Decoder()
    optimizer = ZeroRedundancyOptimizer(
        inner.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3, foreach=False
    )
    return loop(inner, DistributedDataParallel(inner), optimizer=optimizer)


# ---- Sharded models ----------------------------------------------------------------------


def flat(**options: Any) -> Made:
    """Makes a job under FullyShardedDataParallel (FSDP1)."""
    policy = ModuleWrapPolicy({Block})
    cpu = torch.device("cpu")
    return loop(
        FullyShardedDataParallel(
            Decoder(),
            auto_wrap_policy=policy,
            device_id=cpu,
            use_orig_params=True,
            **options,
        )
    )


job("fsdp1")(flat)
job("fsdp1-shard-grad-op")(lambda: flat(sharding_strategy=Sharding.SHARD_GRAD_OP))
job("fsdp1-bf16")(
    lambda: flat(
        mixed_precision=OldMixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )
)


def sharded(mesh: Any = None, micro_batches: int = 1, clip: bool = False, **options: Any) -> Made:
    """fully_shard, FSDP2: every block and the whole."""
    model = Decoder()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    pause = None
    if micro_batches > 1:
        pause = model.set_requires_gradient_sync
    return loop(model, micro_batches=micro_batches, pause=pause, clip=clip)


job("fsdp2")(sharded)
job("fsdp2-keep")(lambda: sharded(reshard_after_forward=False))
job("fsdp2-bf16")(
    lambda: sharded(
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )
)
job("fsdp2-accumulation")(lambda: sharded(micro_batches=3))
job("fsdp2-clipped")(lambda: sharded(clip=True))


@job("fsdp2-checkpointed", budget="0.75x")
def fsdp2_checkpointed() -> Made:
    """Every second block is checkpointed, then all are sharded."""
    model = checkpointed()
    for block in model.blocks:
        fully_shard(block)
    return loop(fully_shard(model))


def compiled(backend: str, dropout: float = 0.0, **options: Any) -> Decoder:
    """Returns the model with every block compiled, and sharded after that if `options` are those of
    `fully_shard`."""
    model = Decoder(drop=dropout)
    for block in model.blocks:
        block.compile(fullgraph=True, backend=backend)
        if options:
            fully_shard(block, **options)
    return fully_shard(model, **options) if options else model


def compiled_copies(backend: str) -> Made:
    """Makes a job under DistributedDataParallel whose blocks are compiled."""
    inner = compiled(backend)
    return loop(inner, DistributedDataParallel(inner))


again: dict[str, Any] = {"reshard_after_forward": True}
job("ddp-compiled-blocks")(lambda: compiled_copies("aot_eager"))
job("ddp-compiled-blocks-inductor", ranks=4)(lambda: compiled_copies("inductor"))
job("fsdp2-compiled-blocks")(lambda: loop(compiled("aot_eager", **again)))
job("fsdp2-compiled-dropout")(lambda: loop(compiled("aot_eager", 0.1, **again), micro_batches=2))
job("fsdp2-compiled-blocks-inductor", ranks=4)(lambda: loop(compiled("inductor", **again)))


@job("hsdp", ranks=4)
def hsdp() -> Made:
    """Two copies of the model, each in two shards."""
    return sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard")))


# ---- Tensor parallel ---------------------------------------------------------------------


def split(mesh: Any, sequence: bool) -> Decoder:
    """Returns the model with its blocks split over the ranks of a mesh."""
    model = Decoder(drop=0.0)
    if sequence:
        row: Any = RowwiseParallel(output_layouts=Shard(1))
        column: Any = ColwiseParallel(input_layouts=Shard(1))
    else:
        row, column = RowwiseParallel(), ColwiseParallel()
    plan: dict[str, Any] = dict.fromkeys(("query", "key", "value", "up"), column)
    plan |= {"out": row, "down": row}
    if sequence:
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    if sequence:
        parallelize_module(
            model,
            mesh,
            {
                "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "norm": SequenceParallel(),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            },
        )
    return model


@job("tensor-parallel")
def tensor_parallel() -> Made:
    """Attention heads and hidden units are split over the ranks."""
    return loop(split(init_device_mesh("cpu", (2,)), sequence=False), ranks_differ=False)


@job("sequence-parallel")
def sequence_parallel() -> Made:
    """As above; between the blocks each rank has a part of the sequence."""
    return loop(split(init_device_mesh("cpu", (2,)), sequence=True), ranks_differ=False)


@job("fsdp2-tensor-parallel", ranks=4)
def two_dimensions() -> Made:
    """Tensor parallel in pairs of ranks, FSDP2 across them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "split"))
    model = split(mesh["split"], sequence=False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    return loop(fully_shard(model, mesh=mesh["shard"]), ranks_differ=False)


# ---- By hand -----------------------------------------------------------------------------


class _Sum(torch.autograd.Function):
    """The sum over all ranks, made in place, as Megatron does; its gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Adds the tensors of all ranks."""
        distributed.all_reduce(x)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> Tensor:
        """Returns the gradient."""
        return grads[0]


class _Copy(torch.autograd.Function):
    """The identity, whose gradient is the sum over all ranks."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        """Returns a view."""
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> Tensor:
        """Adds the gradients of all ranks."""
        grad = grads[0].contiguous()
        distributed.all_reduce(grad)
        return grad


class HalfBlock(nn.Module):
    """A residual multilayer perceptron, of which this rank has half of the hidden units."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down, self.gain = (
            nn.Linear(2 * WIDTH, WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of `x`, the same on all ranks."""
        total = _Sum.apply(self.down(F.gelu(self.up(_Copy.apply(self.norm(x))))))
        return x + self.gain(total).tanh()


class HalfModel(nn.Module):
    """Blocks of which this rank has a half, between an embedding and a head that all have."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Linear(WIDTH, VOCABULARY),
        )
        self.blocks = nn.Sequential(*(HalfBlock() for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits."""
        return self.head(self.blocks(self.embed(x)))


@job("tensor-parallel-by-hand", budget="0.4x")
def by_hand() -> Made:
    """Sums in place within the forward, without DTensor."""
    model = HalfModel()
    return loop(model, ranks_differ=False)
