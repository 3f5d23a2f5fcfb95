# SPDX-License-Identifier: Apache-2.0
"""The networks of the figure, and the ways to train them that it compares.

network = build("gpt", blocks=8, batch=4, device="cuda")
call = network.way("sqrt")              # model.forward, checkpointed over segments
loss = network.loss(call(network.x))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import train_gpt
import train_resnet
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

__all__ = ["Network", "build"]


@dataclass
class Network:
    """A model that is a row of blocks between a beginning and an end, and its batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    row: list[nn.Module]
    blocks: list[nn.Module]  # those of the row that a user would checkpoint
    begin: Callable[[Tensor], Tensor]
    end: Callable[[Tensor], Tensor]

    def way(self, name: str) -> Callable[[Tensor], Tensor]:
        """The forward of one way of training."""
        if name == "sqrt":
            segments = max(1, round(math.sqrt(len(self.blocks))))
            return lambda x: self.end(
                checkpoint_sequential(self.row, segments, self.begin(x), use_reentrant=False)
            )
        if name == "block":
            for layer in self.blocks:
                plain = layer.forward
                layer.forward = lambda x, f=plain: checkpoint(f, x, use_reentrant=False)
        elif name == "compile":
            import torch._functorch.config as config

            config.activation_memory_budget = 0.3
            compiled: Any = torch.compile(self.model, backend="aot_eager_decomp_partition")
            return compiled  # type: ignore[no-any-return]
        return self.model

    def loss(self, out: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, -2), self.y.flatten())


def _resnet(blocks: int, batch: int) -> Network:
    model = train_resnet.ResNet(2 * blocks + 2)
    row = list(model.layers)
    return Network(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        torch.randn(batch, 3, 32, 32),
        torch.randint(0, 10, (batch,)),
        row,
        [layer for layer in row if isinstance(layer, train_resnet.Block)],
        lambda x: x,
        lambda h: model.head(h.mean(dim=(2, 3))),
    )


def _gpt(blocks: int, batch: int) -> Network:
    model = train_gpt.GPT(blocks, 128, 4, 128, 0.1)
    tokens = torch.randint(0, train_gpt.BYTES, (batch, 129))
    row = list(model.blocks)
    positions = torch.arange(128)
    return Network(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        tokens[:, :-1].contiguous(),
        tokens[:, 1:].contiguous(),
        row,
        row,
        lambda x: model.drop(model.token(x) + model.position(positions)),
        lambda h: model.head(model.norm(h)),
    )


_NETWORKS: dict[str, Callable[[int, int], Network]] = {"resnet": _resnet, "gpt": _gpt}


def build(name: str, blocks: int, batch: int, device: str | torch.device = "cpu") -> Network:
    """Makes a network and its batch on a device, from the generator of that device."""
    with torch.device(device):
        return _NETWORKS[name](blocks, batch)
