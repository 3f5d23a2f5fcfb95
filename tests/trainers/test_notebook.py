# SPDX-License-Identifier: Apache-2.0
"""A notebook, run by Jupyter's own client in a kernel, shows what Reprise returns as pictures."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

TRAIN = """
import torch, reprise
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh())])
x = torch.randn(256, 64)
def step(model, x):
    return model(x).square().mean()
"""
ARMED = """
reprise.auto(model, "0.6x")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    step(model, x).backward()
    optimizer.step()
reprise.report(model)
"""


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (ARMED, ["<svg", "budget", "measured peak", "It fits in"]),
        ("reprise.estimate(model, step, x)", ["<svg", "static"]),
        ('reprise.estimate(model, step, x, budget="0.6x")', ["<svg", "added time"]),
        ("reprise.saved(model, lambda: step(model, x).backward())", ["tanh", "are kept"]),
        (
            'reprise.fit(model, step, lambda n: (torch.randn(n, 64),), budget="4MiB")',
            ["<pre>", "largest without a plan"],
        ),
    ],
)
def test_a_cell_ends_with_a_picture(cell: str, words: list[str]) -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in (TRAIN, cell)]
    notebook = nbformat.v4.new_notebook(cells=cells)

    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()

    outputs = [o for o in notebook.cells[1].outputs if o.output_type == "execute_result"]
    html = outputs[0].data["text/html"]
    assert [word for word in words if word not in html] == []
    assert "<script" not in html
