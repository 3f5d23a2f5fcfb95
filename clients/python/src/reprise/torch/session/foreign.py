# SPDX-License-Identifier: Apache-2.0
"""Tells users of other frameworks which call plans an object that `reprise.auto` does not take."""

from __future__ import annotations

from importlib.util import find_spec
from types import FunctionType
from typing import Any


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
    if "keras" in roots:
        return (
            f"{name}: is Keras's; reprise.keras.auto(model, budget=...) between compile() and "
            "fit() plans its training"
        )
    if "tensorflow" in roots:
        return (
            f"{name}: is TensorFlow's; reprise.tensorflow.auto(train_step, budget=...) plans a "
            "step that is a function, reprise.tensorflow.gradients(ys, xs, budget=...) one in a "
            "graph"
        )
    if roots & {"jax", "jaxlib", "flax", "optax"}:
        return (
            f"{name}: is JAX's; reprise.jax.auto(train_step, budget=...) plans a step that is a "
            "function, reprise.jax.value_and_grad(loss, budget=...) its gradient alone"
        )
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
