# SPDX-License-Identifier: Apache-2.0
"""reprise export --for: what it says of torch.utils.checkpoint is what that needs."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from zoo import GPT, ViT

from reprise.torch.estimation.fake import fake_graph

WIDTH = 64


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = (
            self.qkv(self.attention_norm(x)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        y = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(128, WIDTH)
        self.layers = nn.ModuleList(LlamaBlock() for _ in range(6))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 128, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


NETS: dict[str, tuple[Callable[[], nn.Module], str, Callable[[], Tensor]]] = {
    "gpt": (lambda: GPT(depth=6), "blocks", lambda: torch.zeros(16, 64, dtype=torch.int64)),
    "llama": (Llama, "layers", lambda: torch.zeros(16, 64, dtype=torch.int64)),
    "vit": (lambda: ViT(depth=6), "layers", lambda: torch.zeros(16, 3, 32, 32)),
}
TOOLS = ["jax-names", "megatron", "torch-sac", "torchtitan", "transformers"]


def graph_of(net: str, around: dict[int, Any] | None = None) -> Any:
    """Returns the step of a net from shapes; `around`: by layer, what checkpointing it takes."""
    make, layers, batch = NETS[net]
    model = make()
    for number, how in (around or {}).items():
        layer = getattr(model, layers)[number]
        layer.forward = functools.partial(
            checkpoint, layer.forward, use_reentrant=False, **({} if how is None else how)
        )

    def step(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    return fake_graph(model, step, (batch(),), torch.optim.AdamW, torch.device("cpu"))


@pytest.fixture
def reprise(root: Path, tmp_path: Path) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [str(root / "build/bin/reprise"), "--json", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 3), done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("budget", ["0.7x", "0.4x"])
@pytest.mark.parametrize("net", NETS)
def test_the_peak_of_each_tool_is_within_the_budget_and_that_of_torch_is_as_foretold(
    net: str, budget: str, reprise: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "net.json").write_bytes(graph_of(net).to_json())
    plan = ["plan", "net.json", "--budget", budget, "--executor", "tape", "-o", "net.plan.json"]
    reprise(*plan)

    said = {tool: reprise("export", "net.plan.json", "--for", tool) for tool in TOOLS}

    for tool, setting in said.items():
        assert setting["fits"], tool
        assert setting["peak_bytes"] <= setting["budget_bytes"], tool
        assert setting["overhead"] >= setting["plan_overhead"] - 1e-6, tool
    first = int(re.search(r"first (\d) of 6", said["transformers"]["what"])[1])  # type: ignore[index]
    saved = [
        functools.reduce(getattr, name.split("."), torch.ops)
        for name in re.findall(r"torch\.ops\.([\w.]+),", said["torch-sac"]["setting"])
    ]
    selective = functools.partial(create_selective_checkpoint_contexts, saved)
    real = {
        "transformers": graph_of(net, dict.fromkeys(range(first))),
        "torch-sac": graph_of(net, {layer: {"context_fn": selective} for layer in range(6)}),
    }
    for tool, graph in real.items():
        assert abs(said[tool]["peak_bytes"] / graph.base_peak_bytes() - 1) < 0.05, tool


def test_what_is_to_be_copied_is_python(reprise: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "net.json").write_bytes(graph_of("gpt").to_json())
    reprise("plan", "net.json", "--budget", "0.4x", "--executor", "tape", "-o", "net.plan.json")

    for tool in ("transformers", "torch-sac", "torchtitan", "jax-names"):
        ast.parse(reprise("export", "net.plan.json", "--for", tool)["setting"])
