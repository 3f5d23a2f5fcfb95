# SPDX-License-Identifier: Apache-2.0
"""Plans that the tape cannot run are refused before anything is changed."""

from __future__ import annotations

import pytest
import referee
from jobs import CapturedGraph, captured, compile_plan, plain_step, start_meter
from nets import Chain, ConvNet, job

from reprise.torch.tape.compile_plan import PlanRejected


@pytest.fixture(scope="module")
def graph() -> CapturedGraph:
    made = job(ConvNet(), 4, 3, 8, 8)
    plain_step(made, 0)
    return captured(made, start_meter())


@pytest.fixture(scope="module")
def base(graph: CapturedGraph) -> list[int]:
    return referee.base_schedule(graph.message())


def at_backward(graph: CapturedGraph, schedule: list[int]) -> int:
    """Returns the position of the first op of the backward."""
    ops = graph.message()["ops"]
    return next(i for i, e in enumerate(schedule) if e >= 0 and ops[e]["phase"] == "PHASE_BACKWARD")


def op_of(graph: CapturedGraph, name: str) -> int:
    return next(i for i, op in enumerate(graph.message()["ops"]) if op["name"] == name)


def test_the_base_order_discards_nothing(graph: CapturedGraph, base: list[int]) -> None:
    program = compile_plan(graph, base)

    assert not any(program.slots)
    assert program.replays == 0
    assert all(not row.replays for row in program.rows)


def test_a_plan_that_ends_early_is_refused(graph: CapturedGraph, base: list[int]) -> None:
    with pytest.raises(PlanRejected, match="never runs"):
        compile_plan(graph, base[: len(base) // 2])


def test_a_plan_that_is_out_of_order_is_refused(graph: CapturedGraph, base: list[int]) -> None:
    execs = [e for e in base if e >= 0]
    execs[3], execs[4] = execs[4], execs[3]

    with pytest.raises(PlanRejected, match="runs before"):
        compile_plan(graph, execs)


def test_an_op_outside_the_captured_step_is_refused(graph: CapturedGraph, base: list[int]) -> None:
    with pytest.raises(PlanRejected, match="not in the captured step"):
        compile_plan(graph, [*base, 1_000_000])


def test_a_side_effect_is_never_run_twice(graph: CapturedGraph, base: list[int]) -> None:
    at = at_backward(graph, base)
    counter = op_of(graph, "aten.add_.Tensor")

    with pytest.raises(PlanRejected, match="runs twice"):
        compile_plan(graph, [*base[:at], counter, *base[at:]])


def test_a_recompute_in_the_forward_is_refused() -> None:
    made = job(Chain(4))
    plain_step(made, 0)
    graph = captured(made, start_meter())
    execs = [e for e in referee.base_schedule(graph.message()) if e >= 0]
    sine = op_of(graph, "aten.sin.default")

    with pytest.raises(PlanRejected, match="outside the backward"):
        compile_plan(graph, [*execs[: sine + 1], sine, *execs[sine + 1 :]])


def test_a_plan_that_frees_an_input_too_early_is_rejected(
    graph: CapturedGraph, base: list[int]
) -> None:
    at = at_backward(graph, base)
    freed_later = next(-e - 1 for e in base[at:] if e < 0)

    with pytest.raises(PlanRejected, match=r"needs storage|freed while"):
        compile_plan(graph, [*base[:at], -freed_later - 1, *base[at:]])


def test_dropping_the_target_of_an_in_place_op_without_replaying_it_is_refused(
    graph: CapturedGraph, base: list[int]
) -> None:
    # Batch norm makes y@1, relu_ leaves y@2, autograd saved y@2. Making y@1 again is not enough.
    message = graph.message()
    norm = op_of(graph, "aten.native_batch_norm.default")
    y = message["ops"][norm]["writes"][0]
    at = at_backward(graph, base)
    reader = next(
        i for i, e in enumerate(base) if i >= at and e >= 0 and y in message["ops"][e]["reads"]
    )

    with pytest.raises(PlanRejected, match="at version 2, which is at version 1"):
        compile_plan(graph, [*base[:reader], -y - 1, norm, *base[reader:]])
