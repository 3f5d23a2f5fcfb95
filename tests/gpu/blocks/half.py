# SPDX-License-Identifier: Apache-2.0
"""ResNet, batch 1280, in bfloat16 and channels_last while cuDNN tries its algorithms: plain, every
block by hand, and Reprise at that peak."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from runner import Block, Here, Row
from sizes import sizes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training import beside, trained

STEPS = 12


class ResNetJob:
    """The network of examples/train_resnet.py on random images."""

    def __init__(self, blocks: int, batch: int, by_hand: bool) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
        import train_resnet

        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        self.model: nn.Module = train_resnet.ResNet(2 * blocks + 2)
        self.model = self.model.to("cuda", memory_format=torch.channels_last)
        if by_hand:
            for layer in self.model.modules():
                if isinstance(layer, train_resnet.Block):
                    plain = layer.forward
                    layer.forward = lambda x, f=plain: checkpoint(f, x, use_reentrant=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        images = torch.randn(batch, 3, 32, 32, device="cuda")
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 10, (batch,), device="cuda")

    def step(self, number: int) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def resnet(here: Here, by_hand: bool = False, budget: Any = "plain") -> None:
    size = sizes(here.rehearsal)
    job = ResNetJob(size.half_blocks, size.resnet_batch, by_hand)
    figures = trained(here, job, STEPS, budget=budget)
    if here.row != "plain":
        again = "" if here.row == "plain again" else "plain again"
        beside(here, figures, "plain", again)


HALF = Block(
    "half",
    "ResNet in bfloat16, channels_last, cudnn.benchmark: does a plan hold where cuDNN chooses?",
    40.0,
    (
        Row("plain", resnet, 25),
        Row("plain again", resnet, 25),
        Row("block", lambda here: resnet(here, True), 25),
        Row(
            "reprise at block",
            lambda here: resnet(here, budget=int(here.found("block")["requested"])),
            35,
        ),
    ),
)
