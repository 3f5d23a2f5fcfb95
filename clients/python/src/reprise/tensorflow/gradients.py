# SPDX-License-Identifier: Apache-2.0
"""`tf.gradients` with a memory budget, or with checkpoints.

    grads = reprise.tensorflow.gradients(loss, variables, budget="0.5x")
    grads = reprise.tensorflow.gradients(loss, variables, checkpoints="memory")
    with reprise.tensorflow.replace_gradients(budget="0.5x"): ...      # in the whole process

The graph is rewritten while it is built (planning.py): copies of ops recompute what the plan
discards. All gradients are bit for bit the same. The graph must not have run in a session before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gradients as modern
from tensorflow.python.ops import gradients_impl
from tensorflow.python.util.module_wrapper import TFModuleWrapper

from reprise.base.errors import RepriseError
from reprise.plan.wish import is_disabled
from reprise.tensorflow.planning import Applied, Request, rewrite_step, take_back

# Bound at import, because a program may replace it with this module's function later.
_plain_gradients = gradients_impl.gradients


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str | None = None,
    *more: Any,
    budget: str | int | None = None,
    checkpoints: str | Sequence[Any] | None = None,
    batch: int | None = None,
    time_limit_s: float | None = None,
    on_infeasible: str = "plain",
    max_overhead: float | None = None,
    **options: Any,
) -> list[Any]:
    """Takes what `tf.compat.v1.gradients` takes and returns the same gradients, with either a
    `budget` ("0.5x", "2GiB", or bytes; it covers variables, inputs and everything that the step
    allocates) or `checkpoints`: "memory", "speed", "collection" or a list of tensors. `batch` is
    the size to assume for dimensions that the graph leaves open; checkpoints work without it, but
    nothing is predicted. `name` is the scope of the new ops and the name of the run. REPRISE_BUDGET
    replaces the budget, REPRISE_DISABLE=1 leaves the gradients as they are.

    Where no plan fits the budget, or the fitting one takes more than `max_overhead` (0.3: 30 %
    more time), or the step cannot be planned, the graph stays as TensorFlow makes it, and a line
    says why. With `on_infeasible="nearest"` it is planned within the smallest budget with a known
    plan, with "raise" `InfeasibleBudget`, which names the op that needs more, or another error is
    raised."""
    request = Request.of(
        "gradients", budget, checkpoints, batch, name, on_infeasible, max_overhead, time_limit_s
    )
    outputs = [tf.convert_to_tensor(y) for y in tf.nest.flatten(ys)]
    if not is_disabled():
        take_back(outputs)
    found = _plain_gradients(ys, xs, grad_ys, name or "gradients", *more, **options)
    if is_disabled() or not _values(found):
        return list(found)
    made = rewrite_step(outputs, _values(found), request)
    return [_after(made, gradient) if isinstance(made, Applied) else gradient for gradient in found]


def _after(made: Applied, gradient: Any) -> Any:
    """Returns the gradient, which is not available before the last op of the step has run if the
    step reads variables that are changed in place, as those of TensorFlow 1 are: an update must not
    come before their last reader."""
    in_place = any(t.dtype._is_ref_dtype for op in made.step.sources for t in op.inputs)
    if not in_place or gradient is None or made.rewritten.last is None:
        return gradient
    last = made.rewritten.last
    with last.graph.control_dependencies([last]):
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.identity(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return tf.identity(gradient)


def _values(found: Sequence[Any]) -> list[Any]:
    """Returns the tensors of the gradients. The gradient of an embedding has two: values and row
    numbers."""
    tensors: list[Any] = []
    for gradient in found:
        if isinstance(gradient, tf.IndexedSlices):
            tensors += [t for t in (gradient.values, gradient.indices) if t is not None]
        elif gradient is not None:
            tensors.append(gradient)
    return tensors


def _holders() -> list[Any]:
    """Returns the modules in which optimizers and programs look `gradients` up. `import
    tensorflow.compat.v1` makes another module object than `tensorflow.compat.v1`."""
    found = {id(module): module for module in (modern, tf.compat.v1, tf)}
    for name, module in list(sys.modules.items()):
        if name.endswith("compat.v1") and issubclass(type(module), TFModuleWrapper):
            found[id(module)] = module
    return list(found.values())


def see_assignments() -> None:
    """Makes modules of TensorFlow see an assignment to their `__dict__["gradients"]`, those that
    are imported later, too. TensorFlow remembers a name of a module when it is first looked up, and
    returns the first value from then on."""
    remember = getattr(TFModuleWrapper, "_fastdict_insert", None)
    if remember is None or "_fastdict_insert" in vars(TFModuleWrapper):
        return

    def all_but_gradients(module: Any, name: str, value: Any) -> None:
        if name != "gradients":
            remember(module, name, value)

    TFModuleWrapper._fastdict_insert = all_but_gradients
    for module in _holders():
        for name in ("gradients", "_fastdict_insert"):
            if issubclass(type(module), TFModuleWrapper) and module._fastdict_key_in(name):
                module._fastdict_pop(name)


# At import, so that the assignment is seen whatever was imported before.
see_assignments()


@contextmanager
def replace_gradients(
    budget: str | int | None = None,
    checkpoints: str | Sequence[Any] | None = None,
    **options: Any,
) -> Iterator[None]:
    """Makes `tf.gradients` and the optimizers of `tf.compat.v1.train` plan their step inside this
    context. Raises RepriseError unless it is given one of budget and checkpoints."""
    if (budget is None) == (checkpoints is None):
        raise RepriseError("replace_gradients: give either budget= or checkpoints=")
    function = functools.partial(gradients, budget=budget, checkpoints=checkpoints, **options)
    before = [(holder, holder.gradients) for holder in _holders()]
    for holder, _ in before:
        holder.gradients = function
    try:
        yield
    finally:
        for holder, plain in before:
            holder.gradients = plain
