# SPDX-License-Identifier: Apache-2.0
"""The example runs as its page says, keeps its budget and every bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.tf.conftest import ROOT

SMALL = ("--blocks", "3", "--batch", "64", "--steps", "2")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/tensorflow_resnet.py"), *SMALL, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "clients/python/src")},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("how", [("--budget", "0.8x"), ("--checkpoints", "speed")])
def test_the_example_prints_its_peak_and_that_every_result_is_equal(how: tuple[str, ...]) -> None:
    done = run(*how)

    assert done.returncode == 0, done.stderr
    *_, loss, measured, checked = done.stdout.splitlines()
    assert loss.startswith("step 1: loss ")
    assert "(+0.0 %)" in measured
    assert ("was kept" in measured) == ("--budget" in how)
    assert checked.endswith("results were compared: all are equal bit for bit.")


def test_the_example_trains_on_where_nothing_fits_and_says_so_once() -> None:
    done = run("--budget", "1MiB")

    assert done.returncode == 0, done.stderr
    (said,) = (line for line in done.stderr.splitlines() if "Nothing fits in 1.0 MiB" in line)
    assert said.endswith("Training continues without a plan.")
    assert done.stdout.splitlines()[-1].startswith("step 1: loss ")
