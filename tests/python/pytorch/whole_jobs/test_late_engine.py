# SPDX-License-Identifier: Apache-2.0
"""The native engine is compiled beside a job, and takes over from Python between two steps.

The compiler's minute is replaced by a wait: what stands for the interpreter that compiles copies
the library that the tests have built, once the job says so. The library is the real one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprise.torch.compiled.fast import FAST

pytestmark = pytest.mark.e2e

PROGRAM = """
import json, pathlib, sys
import torch
from torch.nn import functional as F
sys.path.insert(0, sys.argv[1])
go = pathlib.Path(sys.argv[3])
from train_gpt import GPT
torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT(3, 64, 4, 64, 0.1)
x, y = torch.randint(0, 100, (8, 64)), torch.randint(0, 100, (512,))
optimizer = torch.optim.AdamW(model.parameters())
import reprise
from reprise.torch.compiled import fast
from reprise.torch.training import armed
sys.executable = sys.argv[2]
model = reprise.auto(model, budget="0.5x", verify_every=2)
losses, engines, reasons = [], [], []
for step in range(16):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x).reshape(len(y), -1), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
    loop = armed.current(model)
    handles = loop.handles if loop is not None else []
    engines.append([h.tape.run.native is not None for h in handles])
    reasons.append(reprise.report(model).in_python)
    if step == 9 and fast._builder is not None:
        go.touch()
        fast._builder.wait()
report = reprise.report(model)
print(json.dumps({
    "losses": losses, "engines": engines, "reasons": reasons, "planned": report.planned_steps,
    "checks": report.checks, "failed": report.failed_checks, "left": report.mismatched_steps,
    "predicted": report.predicted_peak_bytes, "measured": report.measured_peak_bytes,
}))
"""


@pytest.fixture
def train(
    python: Callable[..., Any],
    home: Path,
    root: Path,
    agent_library: Path,
    daemon_binary: Path,
    tmp_path: Path,
) -> Callable[..., tuple[dict[str, Any], str]]:
    """Trains in a process that finds no native engine; its compiler ends after ten steps."""
    folder = FAST.cache_folder()
    assert folder is not None
    library = FAST.built(folder)
    assert library is not None
    cache, go, compiler = tmp_path / "cache", tmp_path / "go", tmp_path / "python"
    compiler.write_text(
        f"#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.05; done\n"
        f"exec cp -p {library} {cache}/reprise/fast/\n"
    )
    compiler.chmod(0o700)
    built = {"REPRISE_AGENT": str(agent_library), "REPRISE_DAEMON": str(daemon_binary)}

    def run(**environment: str) -> Any:
        environment |= {"XDG_CACHE_HOME": str(cache), **built}
        done = python("-c", PROGRAM, str(root / "examples"), str(compiler), str(go), **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


@pytest.mark.long
def test_the_native_engine_takes_over_between_two_steps_and_no_bit_changes(train: Any) -> None:
    plain, _ = train(REPRISE_DISABLE="1")

    found, said = train()

    assert found["losses"] == plain["losses"]
    assert (found["failed"], found["left"]) == (0, 0)
    assert found["checks"] >= 4
    assert found["measured"] == pytest.approx(found["predicted"], rel=1e-4)
    # By step: in Python from the first plan on until the compiler has ended, then natively.
    assert found["engines"][9:] == [[False]] + [[True]] * 6, said
    assert "the native engine is being built" in found["reasons"][9]
    assert found["reasons"][10:] == [""] * 6
    waits = said.index("the native engine is being built (about a minute of processor time)")
    assert said.index("the native engine is built: plans run in it from this step on") > waits
    assert said.count("the native engine is b") == 2
