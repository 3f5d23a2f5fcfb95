# SPDX-License-Identifier: Apache-2.0
"""The captured step replays to the measured bytes and leaves the job as it was."""

from __future__ import annotations

import copy

import pytest
import referee
import torch
from jobs import Job, captured, different, plain_step, start_meter
from nets import Chain, Checkpointed, ConvNet, Custom, RandomNet, job
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from reprise.torch.capture.step_graph import build
from reprise.torch.meter.state import alive_bytes, alive_tensors

PARAMETER, GRADIENT, STATE, BESIDE = 1, 2, 3, 10  # reprise.v1.Category

MODELS = {
    "convolutions": lambda: job(ConvNet(), 4, 3, 8, 8),
    "chain": lambda: job(Chain(20)),
    "random": lambda: job(RandomNet(7)),
    "custom function": lambda: job(Custom()),
    "checkpointed": lambda: job(Checkpointed()),
}


def warm(made: Job) -> Job:
    for seed in range(2):
        plain_step(made, seed)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_the_base_order_replays_to_the_measured_peak(name: str) -> None:
    made = warm(MODELS[name]())
    meter = start_meter()
    if not meter.exact:
        pytest.skip(f"needs the exact meter: {meter.why}")

    graph = captured(made, meter)
    message = graph.message()
    peak, _, profile = referee.evaluate(message, referee.base_schedule(message))

    # A few scalars of the loop itself live in C++ only.
    assert abs(peak - graph.step.peak_bytes) <= 64
    worst = max(abs(profile[i] - op.peak_bytes) for i, op in enumerate(graph.step.ops) if op.func)
    assert worst <= 64


@pytest.mark.parametrize("name", MODELS)
def test_capturing_changes_no_gradient_and_leaves_no_hook(name: str) -> None:
    made = warm(MODELS[name]())
    state = copy.deepcopy(made.model.state_dict())
    expected = plain_step(made, 5, step=False)
    made.model.load_state_dict(state)
    attributes = {n: set(vars(m)) for n, m in made.model.named_modules()}

    captured(made, start_meter(), seed=5)

    assert not different(expected, made.state())
    assert attributes == {n: set(vars(m)) for n, m in made.model.named_modules()}
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in made.model.modules())
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_two_captures_of_one_program_have_one_structure() -> None:
    made = warm(job(RandomNet(3)))
    meter = start_meter()

    first, second = captured(made, meter), captured(made, meter)

    assert first.structure == second.structure
    assert len(first.message()["ops"]) == len(second.message()["ops"])


def test_where_a_node_peaks_makes_no_other_structure() -> None:
    made = warm(job(RandomNet(3)))
    meter = start_meter()
    graphs = [captured(made, meter), captured(made, meter)]
    fused = [op for op in graphs[1].step.ops if op.first is not None]
    assert fused
    for op in fused:
        op.name, op.ordinal = "aten.another.default", 7

    structures = [build(g.step, name="", measured_peak_bytes=0, measured_step_ns=0) for g in graphs]

    assert structures[0].structure == structures[1].structure


@pytest.mark.train
def test_fake_tensors_with_symbolic_sizes_are_not_alive_on_the_device_they_name() -> None:
    compiled = torch.compile(nn.Linear(8, 8), backend="aot_eager", dynamic=True)
    compiled(torch.ones(3, 8)).sum().backward()
    fake = FakeTensorMode().from_tensor(torch.ones(1 << 20))
    assert fake.device.type == "cpu"

    device = torch.device("cpu")
    assert all(type(t) is not FakeTensor for t in alive_tensors(device))
    assert type(alive_bytes(device)) is int
    captured(job(Chain(3)), start_meter(), seed=3)
    torch._dynamo.reset()


def test_batch_norm_may_be_replayed_but_its_counter_may_not() -> None:
    made = warm(job(ConvNet(), 4, 3, 8, 8))

    ops = captured(made, start_meter()).message()["ops"]

    kinds = {op["name"]: op["kind"] for op in ops if op["phase"] == "PHASE_FORWARD"}
    assert kinds["aten.native_batch_norm.default"] == "OP_KIND_PURE"
    assert kinds["aten.relu_.default"] == "OP_KIND_PURE"
    assert kinds["aten.add_.Tensor"] == "OP_KIND_ONCE"  # num_batches_tracked
    assert ops[0]["name"] == "reprise.step_begin"


def test_the_reader_of_a_buffer_that_changes_later_is_never_replayed() -> None:
    class Drifting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))
            self.register_buffer("shift", torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (x * self.weight).sin() + self.shift
            z = y.cos()
            self.shift.mul_(0.5)
            return z.exp()

    made = warm(job(Drifting()))

    ops = captured(made, start_meter()).message()["ops"]

    forward = {op["name"]: op["kind"] for op in ops if op["phase"] == "PHASE_FORWARD"}
    assert forward["aten.add.Tensor"] == "OP_KIND_ONCE"
    assert forward["aten.cos.default"] == "OP_KIND_PURE"


def test_every_static_byte_of_the_model_and_its_optimizer_has_a_name() -> None:
    made = job(ConvNet(), 4, 3, 8, 8)
    made.optimizer = torch.optim.AdamW(made.model.parameters())
    warm(made)
    state = [t for s in made.optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    owned = [*made.model.parameters(), *made.model.buffers()]

    message = captured(made, start_meter()).message()

    parts = {part["category"]: part["bytes"] for part in message["static_parts"]}
    assert parts[PARAMETER] == sum(t.untyped_storage().nbytes() for t in owned)
    assert parts[STATE] == sum(t.untyped_storage().nbytes() for t in state)
    assert sum(parts.values()) == message["static_bytes"]


def test_static_memory_that_no_op_reads_is_beside_the_step() -> None:
    made = warm(job(ConvNet(), 4, 3, 8, 8))
    before = _static_parts(made)
    data_set = torch.zeros(1 << 16)

    parts = _static_parts(made)

    assert parts[BESIDE] - before.get(BESIDE, 0) == data_set.untyped_storage().nbytes()


def _static_parts(made: Job) -> dict[int, int]:
    message = captured(made, start_meter()).message()
    return {part["category"]: part["bytes"] for part in message["static_parts"]}


def test_what_the_backward_leaves_in_a_parameter_is_its_gradient() -> None:
    made = warm(job(ConvNet(), 4, 3, 8, 8))

    message = captured(made, start_meter()).message()

    named = {s["name"]: s for s in message["storages"] if s["category"] == GRADIENT}
    for name, parameter in made.model.named_parameters():
        assert named[f"{name}.grad"]["bytes"] == parameter.untyped_storage().nbytes()
