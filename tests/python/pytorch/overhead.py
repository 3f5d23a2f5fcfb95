# SPDX-License-Identifier: Apache-2.0
"""What the tape costs on this machine, in CPU time: per op of the forward, per saved tensor, per
replayed call. Not a test; `python tests/python/pytorch/overhead.py`."""

from __future__ import annotations

import time

import referee
import torch
from jobs import Job, captured, compile_plan, start_meter, sum_of
from torch import nn

from reprise.torch.tape.costs import measured_costs
from reprise.torch.tape.tape import Tape


class Chain(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.length = length

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        for _ in range(self.length):
            x = x.sin()
        return x * self.scale


def cpu_ns(job: Job, tape: Tape | None, rounds: int = 30) -> tuple[float, float]:
    """Returns the fastest forward and backward."""
    forward, backward = [], []
    for _ in range(rounds):
        job.optimizer.zero_grad()
        begin = time.process_time_ns()
        if tape is None:
            out = job.model(*job.inputs)
        else:
            tape.begin()
            with tape.region():
                out = job.model(*job.inputs)
        middle = time.process_time_ns()
        job.loss(out).backward()
        forward.append(middle - begin)
        backward.append(time.process_time_ns() - middle)
    return min(forward), min(backward)


def share_of_large_ops(size: int = 1 << 17, length: int = 40, rounds: int = 30) -> None:
    """Runs armed and plain steps in turns, with ops of about 100 us: once nothing is discarded, and
    once one tensor, so that the tape checks every op and every saved tensor."""
    model = Chain(length)
    job = Job(model, (torch.ones(size),), sum_of, torch.optim.SGD(model.parameters(), lr=0.0))
    graph = captured(job, start_meter())
    message = graph.message()
    kept = Tape(compile_plan(graph, referee.base_schedule(message)))
    for seed in range(100):
        one = compile_plan(graph, referee.random_plan(message, seed, share=0.03, again=0.0))
        if sum(one.slots) == 1:
            break
    tapes = (None, kept, Tape(one))
    best = [(1 << 62, 1 << 62)] * len(tapes)
    for _ in range(rounds):
        for at, tape in enumerate(tapes):
            forward, backward = cpu_ns(job, tape, 1)
            best[at] = (min(best[at][0], forward), min(best[at][1], backward))
    plain, nothing, something = (sum(times) for times in best)
    print(
        f"ops of {best[0][0] / length / 1e3:.0f} us       nothing given up "
        f"{nothing / plain - 1:+.1%} of the step; {sum(one.slots)} given up, {one.replays} replays "
        f"{something / plain - 1:+.1%}"
    )


def main() -> None:
    torch.set_num_threads(1)
    share_of_large_ops()
    length = 500
    model = Chain(length)
    job = Job(model, (torch.ones(8),), sum_of, torch.optim.SGD(model.parameters(), lr=0.0))
    graph = captured(job, start_meter())
    message = graph.message()
    plain = cpu_ns(job, None)
    keep = cpu_ns(job, Tape(compile_plan(graph, referee.base_schedule(message))))
    schedule = referee.random_plan(message, 0, share=1.0, again=0.0)
    program = compile_plan(graph, schedule)
    drop = cpu_ns(job, Tape(program))
    print(
        f"plain           forward {plain[0] / length:6.0f} ns/op  backward {plain[1] / length:6.0f}"
    )
    print(
        f"armed, all kept    forward +{(keep[0] - plain[0]) / length:5.0f} ns/op  backward "
        f"+{(keep[1] - plain[1]) / length:5.0f}"
    )
    extra = (drop[0] - keep[0] + drop[1] - keep[1]) / program.replays
    print(
        f"given up           {program.replays} replays, +{extra:.0f} ns each (record, replay, "
        f"the op itself {plain[0] / length:.0f})"
    )
    print(f"announced          {measured_costs(8 * 8)}")


if __name__ == "__main__":
    main()
