# SPDX-License-Identifier: Apache-2.0
"""Executes a schedule on a traced step, one exec and one free at a time: the oracle.

    traced = trace(step, model, batch)
    done = execute(traced, schedule, meter)      # e >= 0 runs call e, e < 0 frees storage -e-1
    done.bytes                                   # live bytes after every entry, by the meter
    first_difference(traced, schedule, done.bytes, predicted)

    print(agreement(step, model, batch, budget="0.5x"))    # all of it, with a plan of the planner

The evaluator (planner/model/evaluate.h) says what is alive while every exec runs; the oracle does
what the schedule says and measures. Only the table here holds storages, each in one version. So a
free that comes too early shows as a missing storage, one that comes too late as bytes, and a wrong
version as an error or as different gradients. Any valid schedule can be executed: calls, also those
of the backward, may run again anywhere, any number of times.

A training job differs in two ways: here the step runs from a list, and only the schedule decides
what is alive. So agreement here shows that the planner's arithmetic is right; what an executor adds
in a job is measured in jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from oracle.calls import Call, Traced, Value, below_autograd
from oracle.trace import trace, untouched
from torch import Tensor, nn

from reprise.base.budget import Budget
from reprise.base.errors import RepriseError
from reprise.base.units import format_bytes
from reprise.torch.estimation.planner import asked
from reprise.torch.internals.ambient import GeneratorState
from reprise.torch.internals.ops import OpKind, hidden_writes, tensors_in, without_statistics
from reprise.torch.meter.meter import Meter
from reprise.torch.meter.state import alive_bytes, open_meter

__all__ = ["CAPABILITIES", "Agreement", "Execution", "agreement", "execute", "first_difference"]

# A kernel makes all its outputs again, also those that are present; the executor then drops them.
CAPABILITIES = "graph"


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of executing a schedule: loss, gradients and memory."""

    loss: Tensor
    gradients: dict[str, Tensor]
    # By entry: live bytes after it; for an exec, before anything is freed.
    bytes: tuple[int, ...]


def execute(traced: Traced, schedule: Sequence[int], meter: Meter) -> Execution:
    """Runs a whole schedule. `meter` must have been started. Raises RepriseError with the reason if
    the schedule cannot run."""
    machine = _Machine(traced, schedule)
    begin = meter.live() - traced.static_bytes
    points = []
    for at, entry in enumerate(schedule):
        if entry >= 0:
            points.append(machine.run(at, entry, meter) - begin)
        else:
            machine.free(at, -entry - 1)
            points.append(meter.live() - begin)
    return Execution(*machine.results(), tuple(points))


def first_difference(
    traced: Traced, schedule: Sequence[int], measured: Sequence[int], predicted: Sequence[int]
) -> str:
    """Returns a description of the first entry after which the live bytes differ from the
    evaluator's; empty if none does. `predicted` are the evaluator's bytes for every exec; after a
    free they drop by the bytes of the storage."""
    points = iter(predicted)
    expected = 0
    present: set[int] = set()
    left = Counter(e for e in schedule if e >= 0)
    ran: Counter[int] = Counter()
    for at, (entry, found) in enumerate(zip(schedule, measured, strict=True)):
        if entry >= 0:
            expected = next(points, 0)
            what = f"op {entry} {traced.calls[entry].func}"
        else:
            expected -= traced.sizes[-entry - 1]
            what = f"the free of storage {-entry - 1}"
        if found != expected:
            return f"schedule[{at}], {what}: {found} bytes are alive, the evaluator says {expected}"
        if entry >= 0:  # what is freed by itself at the end of an exec
            call = traced.calls[entry]
            ran[entry] += 1
            expected -= sum(traced.sizes[s] for s in call.writes if s in present)
            if call.kind == OpKind.SEEDED and 1 < left[entry] == ran[entry]:
                expected -= traced.state_bytes
            present.update(call.writes)
        else:
            present.discard(-entry - 1)
    return "" if next(points, None) is None else "the evaluator has points for more execs"


class _Machine:
    """Executes a schedule, and holds the storages that are alive."""

    def __init__(self, traced: Traced, schedule: Sequence[int]) -> None:
        self._traced = traced
        self._storages: list[torch.UntypedStorage | None] = [None] * len(traced.sizes)
        self._versions = [0] * len(traced.sizes)
        self._left = Counter(e for e in schedule if e >= 0)
        self._ran: Counter[int] = Counter()
        self._states: dict[int, GeneratorState] = {}
        self._next = 0

    def run(self, at: int, number: int, meter: Meter) -> int:
        """Runs one call; returns the live bytes before anything is freed."""
        if number >= len(self._traced.calls):
            raise RepriseError(f"schedule[{at}]: there is no op {number}")
        call = self._traced.calls[number]
        where = f"schedule[{at}]: op {number} {call.func}"
        self._check(where, number, call)
        state = self._state(number, call)
        args = _loaded(call.args, self._of)
        kwargs = _loaded(call.kwargs, self._of)
        again = self._ran[number] > 1
        func = call.func
        if again and hidden_writes(func, tuple(args)):
            func, args = without_statistics(func, tuple(args))
        with below_autograd(call.grad):
            if again and state is not None:
                now = GeneratorState(self._traced.device)
                state.restore()
                out = func(*args, **kwargs)
                now.restore()
                del now
            else:
                out = func(*args, **kwargs)
        duplicates = self._keep(where, call, out)
        del args, kwargs, out
        seen = meter.live()
        del duplicates
        self._left[number] -= 1
        if not self._left[number]:
            self._states.pop(number, None)
        return seen

    def free(self, at: int, storage: int) -> None:
        """Frees a storage. Raises RepriseError if it is not present."""
        if storage >= len(self._storages) or self._storages[storage] is None:
            raise RepriseError(f"schedule[{at}]: storage {storage} is freed but not present")
        self._storages[storage] = None
        self._versions[storage] = 0

    def results(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss, and the gradients by parameter name. Raises RepriseError if the
        schedule is not complete."""
        if self._next != len(self._traced.calls):
            raise RepriseError(f"schedule: op {self._next} never runs")
        for storage in self._traced.required():
            if self._storages[storage] is None:
                raise RepriseError(f"schedule: storage {storage} is required at the end")
        gradients = {n: self._of(v) for n, v in self._traced.gradients.items()}
        return self._of(self._traced.loss), gradients

    def _check(self, where: str, number: int, call: Call) -> None:
        """Counts a run of a call. Raises RepriseError if the call must not run here or an input is
        missing."""
        if self._ran[number] == 0:
            if number != self._next:
                raise RepriseError(f"{where} runs before op {self._next}")
            self._next += 1
        elif call.kind in (OpKind.ONCE, OpKind.COLLECTIVE):
            raise RepriseError(f"{where} must not run again")
        self._ran[number] += 1
        for storage, version in call.needs.items():
            if self._versions[storage] != version:
                there = self._versions[storage]
                raise RepriseError(
                    f"{where} needs storage {storage} at version {version}, but "
                    + (f"version {there} is present" if there else "it is not present")
                )
        for storage in call.writes:
            if self._versions[storage] > 1:
                raise RepriseError(
                    f"{where} writes storage {storage}, but version "
                    f"{self._versions[storage]} is present: free it first"
                )

    def _state(self, number: int, call: Call) -> GeneratorState | None:
        """Returns the generator state from before the first run of a call that runs more than once
        and draws random numbers; otherwise None."""
        if call.kind != OpKind.SEEDED or (self._ran[number] == 1 and self._left[number] == 1):
            return None
        if self._ran[number] == 1:
            self._states[number] = GeneratorState(self._traced.device)
        return self._states[number]

    def _of(self, value: Value) -> Tensor:
        """Returns the tensor of a value."""
        return value.of(None if value.storage < 0 else self._storages[value.storage])

    def _keep(self, where: str, call: Call, out: Any) -> list[Any]:
        """Stores the storages that a call made; returns those that were already present."""
        duplicates = []
        made = set(call.writes)
        for tensor, value in zip(tensors_in(out), call.outputs, strict=True):
            storage = tensor.untyped_storage()
            known = None if value.storage < 0 else self._storages[value.storage]
            if value.storage in made and known is None:
                self._storages[value.storage] = known = storage
                self._versions[value.storage] = 1
            elif value.storage in made and known is not storage:
                duplicates.append(storage)
                continue
            if value.static is None and known is not storage:
                raise RepriseError(f"{where} does not write where it did when it was traced")
            size = None if value.static is not None else self._traced.sizes[value.storage]
            if not value.lies_as(tensor) or (size is not None and storage.nbytes() != size):
                raise RepriseError(f"{where} makes another tensor than when it was traced")
        for storage_number in call.mutates:
            self._versions[storage_number] += 1
        return duplicates


def _loaded(tree: Any, of: Callable[[Value], Tensor]) -> Any:
    """Returns the arguments with every value replaced by its tensor."""
    if isinstance(tree, Value):
        return of(tree)
    if isinstance(tree, (list, tuple)):
        return [_loaded(t, of) for t in tree]
    if isinstance(tree, dict):
        return {key: _loaded(t, of) for key, t in tree.items()}
    return tree


# ---- With a plan of the planner -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agreement:
    """Compares prediction and execution of one step under a plan."""

    sentence: str  # the plan's sentence
    events: int
    peak_bytes: int  # of the execution
    difference: str  # empty if the bytes agree after every event
    differing: tuple[str, ...]  # parameters whose gradients differ from those of the plain step

    @property
    def agrees(self) -> bool:
        """Whether the bytes and the gradients are as predicted."""
        return not self.difference and not self.differing

    def __str__(self) -> str:
        bits = "all gradients bit for bit equal"
        if self.differing:
            bits = f"gradients that differ: {', '.join(self.differing)}"
        memory = self.difference or f"memory as predicted after each of {self.events} events"
        return f"{self.sentence}. Executed: peak {format_bytes(self.peak_bytes)}, {memory}; {bits}."


def agreement(
    step: Callable[..., Tensor], model: nn.Module, *inputs: Any, budget: str | int = "0.5x"
) -> Agreement:
    """Traces `step(model, *inputs)`, asks for a plan, executes it and compares. The model is
    restored. Raises RepriseError if the step cannot be traced, bytes cannot be counted exactly, or
    there is no plan."""
    checked = Budget(budget)
    traced = trace(step, model, *inputs)
    plan, why, _ = asked(traced.message(), checked, CAPABILITIES)
    if plan is None:
        raise RepriseError(why)
    meter = open_meter(traced.device)
    meter.start(alive_bytes(traced.device))
    try:
        if not meter.exact:
            raise RepriseError(f"bytes cannot be counted exactly here: {meter.why}")
        with untouched(model):
            done = execute(traced, plan.schedule, meter)
    finally:
        meter.stop()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with untouched(model):
        loss = step(model, *inputs)
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    expected = {n: g for n, g in zip(parameters, found, strict=True) if g is not None}
    return Agreement(
        sentence=plan.sentence,
        events=len(plan.schedule),
        peak_bytes=max(done.bytes),
        difference=first_difference(traced, plan.schedule, done.bytes, plan.predicted_bytes),
        differing=tuple(
            n
            for n in sorted(expected.keys() | done.gradients.keys())
            if not _equal(expected.get(n), done.gradients.get(n))
        ),
    )


def _equal(left: Tensor | None, right: Tensor | None) -> bool:
    """Returns whether both are tensors with equal values."""
    return left is not None and right is not None and torch.equal(left, right)
