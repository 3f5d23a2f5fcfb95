# SPDX-License-Identifier: Apache-2.0
"""What a program does to its model works as before when the model is armed: files, copies, workers,
export, scripts, anything that inspects its forward."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import os
import pickle
import subprocess
import sys
import weakref
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from arming import arm
from loops import train
from nets import WIDTH
from torch import Tensor, nn

import reprise
from reprise.torch.policy.state import Stage

pytestmark = pytest.mark.usefixtures("removed")


class Net(nn.Module):
    """A module of a program."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        """Its forward."""
        return torch.relu(self.norm(self.linear(x))) * scale


def pair() -> tuple[Net, Net]:
    """Returns a plain model, and the same one armed and trained."""
    torch.manual_seed(0)
    plain = Net()
    armed = copy.deepcopy(plain)
    arm(armed)
    train(armed, 8)
    plain.load_state_dict(armed.state_dict())
    return plain.eval(), armed.eval()


def test_a_file_of_an_armed_model_is_that_of_a_plain_one(tmp_path: Path) -> None:
    plain, armed = pair()

    for model, name in ((plain, "plain"), (armed, "armed")):
        torch.save(model, tmp_path / name)

    safe = [Net, nn.Linear, nn.BatchNorm1d, set]
    with torch.serialization.safe_globals(safe):
        loaded = torch.load(tmp_path / "armed", weights_only=True)
    x = torch.randn(3, WIDTH)
    assert torch.equal(loaded(x), plain(x))
    assert vars(loaded).keys() == vars(plain).keys()
    # Where there is no Reprise.
    program = (
        "import sys, torch, types; sys.modules['reprise'] = None\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x): return self.norm(self.linear(x))\n"
        "name = Net.__module__ = sys.argv[1]\n"
        "for part in (name.partition('.')[0], name):\n"
        "    sys.modules[part] = types.ModuleType(part)\n"
        "sys.modules[name].Net = Net\n"
        "loaded = torch.load(sys.argv[2], weights_only=False)\n"
        "print(loaded(torch.ones(2, 8)).shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, Net.__module__, str(tmp_path / "armed")],
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "torch.Size([2, 8])", done.stderr


def test_copies_and_pickles_of_an_armed_model_are_plain() -> None:
    plain, armed = pair()
    method = armed.forward
    x = torch.randn(3, WIDTH)

    made = [copy.deepcopy(armed), copy.copy(armed)]
    made += [pickle.loads(pickle.dumps(armed, p)) for p in (0, 2, pickle.HIGHEST_PROTOCOL)]
    whole = pickle.loads(pickle.dumps({"model": armed, "forward": armed.forward}))

    for copied in (*made, whole["model"]):
        assert type(copied) is Net
        assert vars(copied).keys() == vars(plain).keys()
        assert torch.equal(copied(x), plain(x))
    assert whole["forward"].__self__ is whole["model"]
    assert copy.deepcopy({"f": armed.forward, "m": armed})["f"].__func__ is Net.forward
    assert armed.forward is method  # and it is armed as before


def test_the_forward_of_an_armed_model_looks_like_its_own() -> None:
    plain, armed = pair()
    x = torch.randn(3, WIDTH)

    forward = armed.forward

    assert inspect.signature(forward) == inspect.signature(plain.forward)
    assert inspect.getsource(forward) == inspect.getsource(plain.forward)
    assert inspect.ismethod(forward)
    assert isinstance(forward, MethodType)
    assert forward.__func__ is Net.forward
    assert forward.__self__ is armed
    assert forward.__func__(plain, x).equal(plain(x))
    assert forward.__code__ is Net.forward.__code__
    assert forward.__name__ == "forward"
    assert forward.__qualname__ == "Net.forward"
    assert forward.__doc__ == "Its forward."
    assert wraps(forward)(lambda *_: None).__doc__ == "Its forward."
    assert armed.state_dict().keys() == plain.state_dict().keys()
    assert repr(armed) == repr(plain)
    assert torch.equal(armed.forward(x), plain(x))


def test_an_armed_model_is_exported_scripted_and_traced() -> None:
    plain, armed = pair()
    x = torch.randn(3, WIDTH)
    expected = plain(x)

    found: list[Any] = [
        torch.jit.script(armed),
        torch.jit.trace(armed, (x,)),
        torch.export.export(armed, (x,)).module(),
        torch.fx.symbolic_trace(armed),
    ]

    for made in found:
        assert torch.equal(made(x), expected)
    file = io.BytesIO()
    torch.jit.save(found[0], file)


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("grad", [False, True])
def test_a_model_that_is_traced_under_its_plan_warns_as_a_plain_one_and_keeps_its_plan(
    grad: bool, recwarn: pytest.WarningsRecorder
) -> None:
    torch.manual_seed(0)
    model = Net()
    session = arm(model)
    train(model, 6)

    with torch.set_grad_enabled(grad):
        torch.jit.trace(model, (torch.randn(4, WIDTH),))
    train(model, 2)

    ours = str(Path(reprise.__file__).parent)
    assert [w.message for w in recwarn if w.filename.startswith(ours) and "trace" in str(w)] == []
    assert session.job.stage is Stage.PLANNED
    assert session.job.measured.mismatched_steps == 0


def test_a_forward_that_the_program_has_replaced_is_kept() -> None:
    model = Net().eval()
    model.forward = MethodType(lambda self, x: self.linear(x), model)  # type: ignore[method-assign]
    own = model.forward
    session = arm(model)
    x = torch.randn(3, WIDTH)

    assert torch.equal(model(x), model.linear(x))
    assert copy.deepcopy(model).forward.__func__ is own.__func__

    session.remove()
    assert vars(model)["forward"] is own
    assert "__reduce_ex__" not in vars(model)


def test_an_armed_model_dies_with_its_last_user() -> None:
    model = Net()
    arm(model)
    gc.collect()
    known = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert known() is None
    finally:
        gc.enable()
