# SPDX-License-Identifier: Apache-2.0
"""`reprise run -- python train.py`: a Keras program that knows nothing of Reprise trains under a
budget."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import keras
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKEND = keras.backend.backend()

TRAIN = """
import sys
import keras, numpy as np
keras.utils.set_random_seed(0)
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
x = np.random.default_rng(0).normal(size=(512 * 8, 64)).astype("float32")
y = np.tanh(x[:, :4] * 2)
h = inputs = keras.Input((64,))
for _ in range(5):
    h = keras.layers.Dense(64)(h)
    h = keras.layers.BatchNormalization()(h)
    h = keras.layers.Activation("gelu")(h)
model = keras.Model(inputs, keras.layers.Dense(4)(h))
model.compile("adam", "mse", jit_compile=keras.backend.backend() == "jax")
if "armed" in sys.argv:
    import reprise.keras
    reprise.keras.auto(model, "0.9x")
history = model.fit(x, y, batch_size=512, verbose=0, validation_data=(x[:64], y[:64])).history
for values in history.values():
    print(float(values[-1]).hex())
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., tuple[list[float], str]]:
    """Runs the program under `reprise run`; returns what it printed and said."""
    daemon = Path(os.environ.get("REPRISE_DAEMON", ROOT / "build/bin/reprised"))
    command = daemon.with_name("reprise")
    if not command.is_file():
        pytest.fail(f"{command}: not built; run scripts/build", pytrace=False)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    def run(*options: str, argument: str = "") -> tuple[list[float], str]:
        line = [
            str(command),
            "run",
            *options,
            "--",
            sys.executable,
            str(script),
            argument,
        ]
        launch = str(ROOT / "clients/python/src/reprise/launch")
        # A cache of its own: a plan that an earlier process found is in that one's run.
        known = {"XDG_CACHE_HOME": mkdtemp(dir=tmp_path), "REPRISE_LAUNCH": launch}
        done = subprocess.run(
            line,
            env={**os.environ, **known, "REPRISE_DAEMON": str(daemon)},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [float.fromhex(line) for line in done.stdout.splitlines()], done.stderr

    return run


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What the program prints without Reprise."""
    script = tmp_path_factory.mktemp("plain") / "train.py"
    script.write_text(TRAIN)
    line = [sys.executable, str(script), ""]
    done = subprocess.run(line, capture_output=True, text=True, timeout=280, check=True)
    return [float.fromhex(line) for line in done.stdout.splitlines()]


def assert_same(plain: list[float], planned: list[float]) -> None:
    assert len(plain) == 2
    if BACKEND == "jax":  # XLA makes other loops of a program in another order
        np.testing.assert_allclose(planned, plain, rtol=1e-4)
    else:
        assert planned == plain


def test_an_unchanged_program_trains_under_the_budget_with_the_same_history(
    job: Any, plain: list[float]
) -> None:
    planned, said = job("--budget", "0.7x")

    assert_same(plain, planned)
    verdict = next(line for line in said.splitlines() if line.startswith("It fits in"))
    assert "killed" not in said
    if BACKEND == "torch":
        assert "values made again bit for bit equal" in verdict
    elif BACKEND == "tensorflow":
        # Step, peak and gradients are in the same run.
        assert re.search(r"Measured [\d.]+ MiB \([+-]0\.\d %\)", verdict), verdict
        assert "gradients bit for bit equal in 1 check" in verdict
    else:
        assert "Keras on JAX compares no" in verdict


def test_an_unchanged_program_that_no_plan_fits_trains_without_one_and_says_so(
    job: Any, plain: list[float]
) -> None:
    found, said = job("--budget", "1000")

    assert found == plain
    assert "Nothing fits in 1000 B" in said or "compiles the plain step to" in said
    if BACKEND != "torch":
        assert "without a plan." in said
        assert "needs --budget" not in said


def test_without_a_budget_the_program_runs_as_it_is(job: Any, plain: list[float]) -> None:
    found, said = job()

    assert found == plain
    if BACKEND == "torch":
        assert "ended after 8 steps without a plan" in said
    else:
        assert said.count(f"reprise: no plan: Keras on {BACKEND} is planned") == 1
        assert "or a Keras model under a plan, which on JAX and TensorFlow needs --budget" in said


def test_the_budget_of_the_run_replaces_that_of_the_program(job: Any) -> None:
    _, said = job("--budget", "0.7x", argument="armed")
    _, other = job("--budget", "0.9x")

    limit, larger = (text[text.index("It fits in") :].split()[3] for text in (said, other))
    assert float(limit) < float(larger)
