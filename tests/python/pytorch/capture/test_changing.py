# SPDX-License-Identifier: Apache-2.0
"""Parameters that a step writes before it is over: their readers may be replayed until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import referee
import torch
from jobs import ROOT, compile_plan, start_meter
from nets import WIDTH
from torch import Tensor, nn

from reprise.torch.capture.capture import Capture
from reprise.torch.capture.step_graph import CapturedGraph, build
from reprise.torch.meter.state import alive_tensors
from reprise.torch.planning.request import unsupported
from reprise.torch.tape.compile_plan import PlanRejected
from reprise.torch.tape.tape import Tape

assert ROOT

Forward = Callable[[], Tensor]


class Deep(nn.Module):
    """A model with ops between the layers that are worth recomputing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sin().exp().tanh()
        return x


class Sharp:
    """Two forwards and backwards per step; between them the parameters are moved, and moved back
    afterwards."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = Deep()
        self.x = torch.randn(64, WIDTH)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.gradients: list[Tensor] = []

    def step(self, forward: Forward) -> None:
        self.optimizer.zero_grad()
        forward().square().mean().backward()
        self._keep()
        moves = []
        with torch.no_grad():
            for p in self.model.parameters():
                assert p.grad is not None
                moves.append(p.grad * 0.1)
                p.add_(moves[-1])
        self.optimizer.zero_grad()
        forward().square().mean().backward()
        self._keep()
        with torch.no_grad():
            for p, move in zip(self.model.parameters(), moves, strict=True):
                p.sub_(move)
        self.optimizer.step()

    def _keep(self) -> None:
        self.gradients += [p.grad.clone() for p in self.model.parameters() if p.grad is not None]

    def plain(self) -> None:
        self.step(lambda: self.model(self.x))

    def captured(self) -> CapturedGraph:
        meter = start_meter()
        capture = Capture(self.model, meter)
        capture.begin(alive_tensors(torch.device("cpu")), {})

        def forward() -> Tensor:
            with capture.region() as pin:
                out = self.model(self.x)
                pin(out)
            return out

        self.step(forward)
        step = capture.finish()
        meter.stop()
        return build(step, name="sharp", measured_peak_bytes=step.peak_bytes, measured_step_ns=0)

    def planned(self, graph: CapturedGraph, schedule: list[int]) -> Any:
        tape = Tape(compile_plan(graph, schedule))
        run = tape.begin()

        def forward() -> Tensor:
            with tape.region():
                return self.model(self.x)

        self.step(forward)
        run.finish()
        return run.counts


@pytest.fixture
def sharp() -> tuple[Sharp, CapturedGraph]:
    job = Sharp()
    job.plain()
    return job, job.captured()


def _readers(graph: CapturedGraph) -> list[dict[str, Any]]:
    ops = graph.message()["ops"]
    return [op for op in ops if op["name"] == "aten.addmm.default"]


def test_readers_of_parameters_that_move_within_the_step_may_be_replayed(
    sharp: tuple[Sharp, CapturedGraph],
) -> None:
    _, graph = sharp
    message = graph.message()

    weights = {s for op in _readers(graph) for s in op["reads"]} & set(message["required"])

    assert [op["kind"] for op in _readers(graph)] == ["OP_KIND_PURE"] * 6
    assert len(weights) == 6  # of three layers weight and bias, alive from begin to end
    assert weights <= set(message["ops"][0]["writes"])
    _, _, alive = referee.evaluate(message, referee.base_schedule(message))
    assert max(alive) == message["measured_peak_bytes"]


def test_plans_for_both_halves_of_the_step_change_no_bit(
    sharp: tuple[Sharp, CapturedGraph],
) -> None:
    job, graph = sharp
    twin = Sharp()
    for _ in range(2):
        twin.plain()
    message = graph.message()
    schedule = referee.random_plan(message, 1, 1.0, 0.3)
    again = [o for o in set(schedule) if o >= 0 and schedule.count(o) > 1]

    first = len(job.gradients)
    counts = job.planned(graph, schedule)
    reference = len(twin.gradients)
    twin.plain()

    assert any(message["ops"][o]["name"] == "aten.addmm.default" for o in again)
    assert counts.replayed > 0
    assert counts.mismatches == 0
    made, expected = job.gradients[first:], twin.gradients[reference:]
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def test_a_replay_after_the_write_is_refused(sharp: tuple[Sharp, CapturedGraph]) -> None:
    _, graph = sharp
    ops = graph.message()["ops"]
    execs = list(range(len(ops)))
    reader = next(n for n, op in enumerate(ops) if op["name"] == "aten.addmm.default")
    moved = next(n for n, op in enumerate(ops) if op["name"] == "aten.add_.Tensor" and n > reader)
    late = next(n for n in execs if n > moved and ops[n]["phase"] == "PHASE_BACKWARD")

    with pytest.raises(PlanRejected, match="at version 1, which is at version 2"):
        compile_plan(graph, [*execs[:late], reader, *execs[late:]])


def test_a_replay_that_the_tape_could_only_run_after_the_write_is_refused(
    sharp: tuple[Sharp, CapturedGraph],
) -> None:
    # As planned it would stand before the write, but nothing is unpacked there any more.
    _, graph = sharp
    step, ops = graph.step, graph.message()["ops"]
    execs = list(range(len(ops)))
    reader = next(n for n, op in enumerate(ops) if op["name"] == "aten.addmm.default")
    moved = next(n for n, op in enumerate(ops) if op["name"] == "aten.add_.Tensor" and n > reader)
    last = max(n for n in execs[:moved] if ops[n]["phase"] == "PHASE_BACKWARD")
    made = ops[reader]["writes"][0]
    late = next(u for u in step.unpacks if u.op > moved and step.slots[u.slot].storage.id >= 0)
    # Somebody wants it later, so that the replay is not left out.
    step.slots[late.slot] = type(step.slots[late.slot])(
        step.storages[[s.id for s in step.storages].index(made)], 1, (), "float32"
    )

    with pytest.raises(PlanRejected, match=r"would run again after op \d+ has written"):
        compile_plan(graph, [*execs[:last], -made - 1, reader, *execs[last:]])


def test_readers_of_statistics_that_no_op_declares_are_never_replayed() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = (x + self.norm.running_mean).exp()
            return self.norm(y).sin()  # type: ignore[no-any-return]

    job = Sharp()
    job.model = Normed()  # type: ignore[assignment]
    job.optimizer = torch.optim.SGD(job.model.parameters(), lr=0.05)
    job.plain()

    graph = job.captured()

    reads = [op for op in graph.message()["ops"] if op["name"] == "aten.add.Tensor"]
    assert reads[0]["kind"] == "OP_KIND_ONCE"


@torch.library.custom_op("reprise_tests::fill", mutates_args={"into"})
def fill(into: Tensor, value: float) -> None:
    into.fill_(value)


def test_readers_of_memory_that_a_foreign_op_fills_are_never_replayed_and_the_op_is_named() -> None:
    class Lent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("lent", torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            fill(self.lent, 0.5)
            y = self.inner(x).add(self.lent).sin()
            fill(self.lent, 0.25)
            return y.mul(self.lent).exp()

    job = Sharp()
    job.model = Lent()  # type: ignore[assignment]
    job.optimizer = torch.optim.SGD(job.model.parameters(), lr=0.05)
    job.plain()

    graph = job.captured()

    reads = [op for op in graph.message()["ops"] if op["name"] == "aten.add.Tensor"]
    assert reads[0]["kind"] == "OP_KIND_ONCE"
    assert "running ops again whose parameters reprise_tests.fill.default" in unsupported(
        graph.step
    )
