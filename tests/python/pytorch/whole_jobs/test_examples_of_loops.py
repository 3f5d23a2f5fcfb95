# SPDX-License-Identifier: Apache-2.0
"""The examples for the loops of other libraries train with the same bits under a plan."""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.long
@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_an_example_trains_under_a_plan_with_the_same_losses(
    library, home, root, agent_library, daemon_binary
):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    ours = {
        "PYTHONPATH": str(root / "clients/python/src"),
        "REPRISE_AGENT": str(agent_library),
        "REPRISE_DAEMON": str(daemon_binary),
        "OMP_NUM_THREADS": "1",
    }

    def run(*arguments: str) -> list[str]:
        path = root / f"examples/train_{library}.py"
        command = [sys.executable, str(path), "--steps", "9", "--batch", "64", *arguments]
        done = subprocess.run(
            command,
            env={**os.environ, **ours},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    plain, planned = run(), run("--budget", "0.6x")

    assert len(plain) == 9
    assert planned[:9] == plain
    assert planned[9].startswith("It fits in ")
    assert "bit for bit equal" in planned[9]
