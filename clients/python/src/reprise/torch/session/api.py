# SPDX-License-Identifier: Apache-2.0
"""The three calls of Reprise for PyTorch.

    model = reprise.auto(model, budget="0.5x")     # the same object; the loop stays as it is
    print(reprise.report(model))
    reprise.remove(model)

Environment: REPRISE_DISABLE=1 switches everything off, REPRISE_BUDGET replaces the budget,
REPRISE_HOST_BUDGET the host budget,
REPRISE_PLAN_TIMEOUT is how many seconds to wait for a plan (default 60), REPRISE_FIRST how the
first steps run.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from reprise.base.budget import size_of
from reprise.base.errors import RepriseError
from reprise.plan.wish import Wish, is_disabled
from reprise.torch.internals.entry import otherwise
from reprise.torch.training import armed
from reprise.torch.training.report import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    A = TypeVar("A", bound=nn.Module | Sequence[nn.Module])


@otherwise(lambda model, *_, **__: model)
def auto(
    model: A,
    budget: str | int | None = "0.5x",
    *,
    verify_every: int = 50,
    warmup: int = 4,
    name: str | None = None,
    first: str | None = None,
    verify: str = "values",
    on_infeasible: str = "plain",
    max_overhead: float | None = None,
    host_budget: str | int = 0,
) -> A:
    """Arms a model: it trains under plans that keep the whole step within `budget`, the first of
    them made from shapes, the next from a captured step. Returns the same object. A list: the
    stages of a pipeline that this rank has, which are planned as one model. A model on the meta
    device is armed when it is first called with memory for its parameters.

    budget        "22GiB", "22GB", bytes, "90%", "fit", "0.5x"; None: only observe
    verify_every  check the first planned step and then every n-th one bit for bit; 0: never
    warmup        steps that are measured before one is captured
    first         how the first steps run: "auto" (or what REPRISE_FIRST says), under a plan made
                  from shapes alone, before anything has run, unless they fit without one; "plain",
                  as they are; "host", with saved tensors in host memory
    verify        what is checked: "values", everything that is made again against what was given
                  up, in the memory of any planned step; "gradients", those of the parameters too,
                  against the same step run once more without a plan, in the memory of that one
    on_infeasible where no plan fits: "plain" trains on without one, "nearest" under the plan that
                  needs least, "raise" raises InfeasibleBudget out of the forward that waited for
                  the plan; of eager models in one process
    max_overhead  the most extra time of a plan, 0.3 for 30 %; a plan that takes more is no plan.
                  Of eager models in one process
    host_budget   how much host memory plans may use: "8GiB", bytes, "auto": half of what is free
                  now; 0: none, and all that is discarded is recomputed. Of eager models in one
                  process

    RepriseError: the budget cannot be read, the model is armed already with another one, or it is
    another framework's (the sentence names the call for it).
    """
    if is_disabled():
        return model
    models: list[Any] = list(model) if isinstance(model, (list, tuple)) else [model]
    for one in models:
        other = call_for(one)
        if other is not None:
            raise RepriseError(other)
    override = os.environ.get("REPRISE_BUDGET")
    wanted = override if override else budget
    wish = None if wanted is None else Wish.of(wanted, on_infeasible, max_overhead)
    checked = None if wish is None else wish.budget
    loops = {armed.current(one): one for one in models}
    for known, one in loops.items():
        if known is not None and known.attached:
            remove(one)  # `reprise run` was first; the program knows better
        elif known is not None and known.job.budget != checked:
            raise RepriseError(
                f"budget {checked}: this model is already armed with {known.job.budget}; "
                "call reprise.remove(model) first"
            )
        elif known is not None and len(loops) > 1:
            raise RepriseError("model: one of these stages is already armed without the others")
        elif known is not None:
            return model
    from reprise.torch.job.job import Options
    from reprise.torch.session.start import start

    if verify not in ("values", "gradients"):
        raise RepriseError(f'verify "{verify}": is none of values, gradients')
    options = Options(
        budget=checked,
        verify_every=verify_every,
        warmup=max(1, warmup),
        name=name or type(models[0]).__name__,
        first=_first(first),
        verify=verify,
        on_infeasible="plain" if wish is None else wish.on_infeasible,
        max_overhead=None if wish is None else wish.max_overhead,
        host_bytes=_host_bytes(os.environ.get("REPRISE_HOST_BUDGET") or host_budget),
    )
    start(models, options)
    return model


def _host_bytes(asked: str | int) -> int:
    """Returns a host budget in bytes; of "auto", half of what is free, so that data loaders and
    others keep as much, divided by the ranks that a launcher says are here. Raises RepriseError if
    it is no size."""
    if asked in (0, "0", ""):
        return 0
    if asked == "auto":
        from reprise.torch.internals.distributed import ranks_here
        from reprise.torch.meter.room import HOST, room_on

        room = room_on(HOST)
        return 0 if room is None else room.bytes // 2 // ranks_here()
    return size_of("host_budget", asked, "a size such as 8GiB, auto, or 0")


def _first(asked: str | None) -> str:
    ways = ("auto", "plain", "host")
    way = asked or os.environ.get("REPRISE_FIRST") or "auto"
    if way not in ways:
        raise RepriseError(f'first "{way}": is none of {", ".join(ways)}')
    return way


@otherwise(lambda model: None)
def remove(model: nn.Module) -> None:
    """Takes everything out of a model again. Nothing happens if nothing is there."""
    for loop in armed.take(model):
        for other in armed.with_loop(loop):  # stages of one pipeline
            armed.take(other)
        loop.remove()


@otherwise(lambda model: _report_at_last(model))
def report(model: nn.Module) -> Report:
    """Returns what was predicted and what was measured so far."""
    return _report(model)


def _report_at_last(model: nn.Module) -> Report:
    """Returns a report after an internal error, which has been said: the same once more, or that
    there is none."""
    try:
        return _report(model)
    except Exception:
        why = "Reprise failed while making this report; see the log"
        return Report(stage="off", why=why, sentence=f"Not known: {why}.")


def _report(model: nn.Module) -> Report:
    loop = armed.current(model)
    if loop is None:
        never = "reprise.auto was not called on this model"
        why = armed.unarmed.get(model) or ("REPRISE_DISABLE=1" if is_disabled() else never)
        return Report(stage="off", why=why, sentence=f"No plan: {why}.")
    return Report(**loop.figures())


# By the packages of a framework: whose an object is, and the calls that plan it.
_CALLS = (
    (
        {"keras"},
        "Keras's; reprise.keras.auto(model, budget=...) between compile() and fit() plans its "
        "training",
    ),
    (
        {"tensorflow"},
        "TensorFlow's; reprise.tensorflow.auto(train_step, budget=...) plans a step that is a "
        "function, reprise.tensorflow.gradients(ys, xs, budget=...) one in a graph",
    ),
    (
        {"jax", "jaxlib", "flax", "optax"},
        "JAX's; reprise.jax.auto(train_step, budget=...) plans a step that is a function, "
        "reprise.jax.value_and_grad(loss, budget=...) its gradient alone",
    ),
)


def call_for(thing: Any) -> str | None:
    """Returns a sentence that names the call; None for objects of PyTorch, and for others of no
    known framework if PyTorch is installed. It imports no framework, but looks at the modules that
    define the object's classes."""
    modules = [base.__module__ for base in type(thing).__mro__]
    roots = {module.partition(".")[0] for module in modules}
    name = type(thing).__name__
    if "torch" in roots:
        return None
    if "reprise.plan.step_graph" in modules:
        return f"{name}: reprise.plan.plan(graph, budget=...) plans a step graph"
    for framework, call in _CALLS:
        if roots & framework:
            return f"{name}: is {call}"
    if isinstance(thing, FunctionType):
        return (
            f"{thing.__name__}: is a function, and this call plans models of PyTorch; "
            "reprise.jax.auto(train_step, budget=...) and reprise.tensorflow.auto(train_step, "
            "budget=...) plan a step that is a function"
        )
    if find_spec("torch") is None:
        return (
            f"{name}: is no model of PyTorch, which is not installed here; reprise.plan, "
            "reprise.jax, reprise.tensorflow and reprise.keras work without it"
        )
    return None
