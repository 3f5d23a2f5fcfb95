# SPDX-License-Identifier: Apache-2.0
"""One rank of two that train a mixture of experts, each rank with half of them: python
experts_job.py RANK PORT BUDGET STEPS; a BUDGET of "none" trains without Reprise. Prints one JSON
object. Each rank sends every token to the rank that has its expert, so sizes follow the routing."""

from __future__ import annotations

import os
import sys

import torch
from on_ranks import tell
from torch import Tensor, distributed, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional as F

import reprise

WIDTH, EXPERTS, RANKS = 64, 4, 2


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.own = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(EXPERTS // RANKS)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        weights, experts = self.gate(tokens).softmax(-1).max(-1)
        order = experts.argsort(stable=True)
        counts = torch.bincount(experts, minlength=EXPERTS)
        theirs = torch.empty_like(counts)
        distributed.all_to_all_single(theirs, counts)
        to, received = (c.view(RANKS, -1).sum(1).tolist() for c in (counts, theirs))
        world = distributed.group.WORLD
        there = all_to_all_single_autograd(tokens[order], received, to, world)
        which = torch.arange(EXPERTS // RANKS).repeat(RANKS).repeat_interleave(theirs)
        by_expert = which.argsort(stable=True)
        parts = there[by_expert].split(torch.bincount(which, minlength=len(self.own)).tolist())
        done = torch.cat([expert(part) for expert, part in zip(self.own, parts, strict=True)])
        back = all_to_all_single_autograd(done[inverse(by_expert)], to, received, world)
        return (back[inverse(order)] * weights[:, None]).view(x.shape)


def inverse(order: Tensor) -> Tensor:
    found = torch.empty_like(order)
    found[order] = torch.arange(len(order))
    return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(
            nn.ModuleList((nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), Experts()))
            for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for norm, mix, experts in self.blocks:
            x = x + experts(norm(mix(x).tanh() + x))
        return self.head(x)  # type: ignore[no-any-return]


def main() -> None:
    rank, port, budget, steps = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    shared = [p for name, p in model.named_parameters() if ".own." not in name]
    if budget != "none":
        reprise.auto(model, budget=budget, verify_every=10)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    draw = torch.Generator().manual_seed(rank)
    seen = []
    for _ in range(steps):
        words = torch.randint(256, (8, 64), generator=draw)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words).flatten(0, 1), words.roll(-1, 1).flatten())
        loss.backward()
        for parameter in shared:
            distributed.all_reduce(parameter.grad)
        optimizer.step()
        seen.append(loss.item().hex())
    seen += [p.detach().double().sum().item().hex() for p in model.parameters()]
    tell(model, seen, planned=budget != "none")


if __name__ == "__main__":
    main()
