# SPDX-License-Identifier: Apache-2.0
"""`reprise.auto` says which call plans an object of another framework."""

from __future__ import annotations

from typing import Any

import pytest

import reprise
from reprise.plan import StepGraph
from reprise.torch.session.api import call_for


def made_by(module: str, name: str) -> Any:
    """Returns an object that seems to come from a framework, without the framework."""
    return type(name, (type("Base", (), {"__module__": module}),), {"__module__": "__main__"})()


@pytest.mark.parametrize(
    ("thing", "call"),
    [
        (made_by("tensorflow.python.module.module", "Net"), "reprise.tensorflow.auto(train_step"),
        (made_by("keras.src.models.model", "Model"), "reprise.keras.auto(model"),
        (made_by("jaxlib._jax", "PjitFunction"), "reprise.jax.auto(train_step"),
        (made_by("optax._src.base", "GradientTransformation"), "reprise.jax.auto(train_step"),
        (StepGraph("step"), "reprise.plan.plan(graph"),
    ],
    ids=["tensorflow", "keras", "jax", "optax", "step graph"],
)
def test_an_object_of_another_framework_is_refused_with_its_call(thing: Any, call: str) -> None:
    with pytest.raises(reprise.RepriseError) as refusal:
        reprise.auto(thing, budget="0.5x")

    assert str(refusal.value).startswith(type(thing).__name__)
    assert call in str(refusal.value)


def test_objects_of_pytorch_or_of_no_framework_get_no_advice() -> None:
    assert call_for(made_by("torch.nn.modules.module", "Net")) is None
    assert call_for(object()) is None


def test_a_function_is_refused_with_the_calls_that_take_one() -> None:
    def train_step() -> None: ...

    with pytest.raises(reprise.RepriseError, match=r"is a function.*reprise\.jax\.auto"):
        reprise.auto(train_step, budget="0.5x")


def test_without_pytorch_other_objects_are_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reprise.torch.session.api.find_spec", lambda name: None)

    with pytest.raises(reprise.RepriseError, match="object: is no model of PyTorch"):
        reprise.auto(object(), budget="0.5x")
