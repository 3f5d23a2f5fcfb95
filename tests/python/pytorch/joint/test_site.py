# SPDX-License-Identifier: Apache-2.0
"""How a model was compiled, as torch tells it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import reprise
from reprise.torch.joint import site

OWN_GRAPHS = "torch.compile captures this model into CUDA graphs of its own"


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of every model is one that CUDA graphs run on."""
    monkeypatch.setattr(site, "model_device", lambda model: torch.device("cuda"))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize(
    ("how", "makes"),
    [
        ({"mode": "reduce-overhead"}, True),
        ({"mode": "max-autotune"}, True),
        ({"mode": "max-autotune-no-cudagraphs"}, False),
        ({"options": {"triton.cudagraphs": True}}, True),
        ({"backend": "cudagraphs"}, True),
        ({"backend": "aot_eager"}, False),
        ({}, False),
    ],
)
def test_a_model_that_torch_captures_into_cuda_graphs_is_known(
    how: dict[str, Any], makes: bool, in_pieces: bool
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    if in_pieces:
        model[1].compile(**how)
        found: site.Site | None = site.pieces_of(model)
    else:
        compiled: Any = torch.compile(model, **how)
        found = site.site_of(compiled)

    assert found is not None
    assert found.makes_graphs == makes


@pytest.mark.usefixtures("on_gpu")
def test_a_setting_for_all_that_inductor_compiles_counts() -> None:
    import torch._inductor.config as inductor

    model: Any = torch.compile(nn.Linear(2, 2))

    found = site.site_of(model)

    assert found is not None
    with inductor.patch("triton.cudagraphs", True):
        assert found.makes_graphs


def test_on_a_cpu_no_mode_makes_cuda_graphs() -> None:
    model: Any = torch.compile(nn.Linear(2, 2), mode="reduce-overhead")

    found = site.site_of(model)

    assert found is not None
    assert not found.makes_graphs


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("late", [False, True])
def test_such_a_model_trains_without_a_plan_and_is_told_what_to_do(
    late: bool, capsys: pytest.CaptureFixture[str], compiles_afresh: None
) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(8, 4)
    called: Any = torch.compile(model, backend="cudagraphs")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    assert reprise.auto(model if late else called, "0.5x") is (model if late else called)
    for _ in range(5):
        optimizer.zero_grad()
        called(x).square().mean().backward()
        optimizer.step()

    assert reprise.report(model if late else called).planned_steps == 0
    assert OWN_GRAPHS in reprise.report(model if late else called).why
    assert capsys.readouterr().err.count(OWN_GRAPHS) == 1
    reprise.remove(model if late else called)
