# SPDX-License-Identifier: Apache-2.0
"""What the tape costs is measured on the machine it runs on, with the tape itself."""

from __future__ import annotations

from dataclasses import replace

import torch

from reprise.torch import costs
from reprise.torch.costs import Costs
from reprise.torch.tape import Tape


def test_the_chains_that_are_timed_run_as_written_by_hand() -> None:
    program = costs._program(torch.ops.aten.sin.default, saved=True, again=costs.LENGTH - 1)
    tape = Tape(program)
    x = torch.ones(1, requires_grad=True)
    expected = torch.ones(1, requires_grad=True)
    costs._chain(torch.Tensor.sin, expected).backward()

    run = tape.begin()
    with tape.region():
        y = costs._chain(torch.Tensor.sin, x)
    y.backward()

    assert x.grad is not None
    assert expected.grad is not None
    assert torch.equal(x.grad, expected.grad)
    assert run.counts.replayed == costs.LENGTH - 1
    assert run.counts.dropped == costs.LENGTH - 1
    assert (run.counts.mismatches, run.counts.on_demand) == (0, 0)


def test_measuring_leaves_no_trace() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()

    found = costs.measured_costs()

    assert found is costs.measured_costs()
    assert min(found.op_ns, found.saved_ns, found.replay_ns) >= 0
    assert torch.equal(before, torch.get_rng_state())
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_plan_that_gives_nothing_up_costs_nothing() -> None:
    sin = torch.ops.aten.sin.default
    armed = costs._program(sin, saved=True, again=1)
    idle = replace(armed, replays=0)

    # 32 ops and 32 saved tensors: 32 * 3 + 32 * 2.
    assert Costs(3, 2, 9).armed_ns(Tape(armed)) == 160
    assert Costs(3, 2, 9).armed_ns(Tape(idle)) == 0
