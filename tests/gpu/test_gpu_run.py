# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run where there is no GPU: it says so; and its checks run on a fake CUPTI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILD = Path(os.environ.get("REPRISE_BUILD", HERE.parents[1] / "build"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REPRISE_")}
    return subprocess.run(
        [str(HERE / "run"), "--python", sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        env=environment,
    )


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path: Path) -> None:
    finished = run("--out", str(tmp_path / "report"))
    assert finished.returncode == 3
    assert "not run: there is no NVIDIA driver" in finished.stderr
    assert not (tmp_path / "report").exists()


def test_an_unknown_option_is_a_usage_error(tmp_path: Path) -> None:
    assert run("--nonsense").returncode == 2


@pytest.fixture(scope="module")
def fake() -> str:
    if not (BUILD / "lib/libfake_cupti_130.so").exists():
        pytest.fail(f"{BUILD}/lib/libfake_cupti_130.so: not built; run scripts/build --tests")
    return str(BUILD)


def test_every_check_runs_on_a_fake_cupti_and_is_in_the_report(tmp_path: Path, fake: str) -> None:
    finished = run("--out", str(tmp_path), "--fake", fake)
    assert finished.returncode == 0, finished.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    checks = {entry["check"]: entry for entry in report["checks"]}
    assert len(report["checks"]) == 17
    assert all("failed" not in entry and "not_run" not in entry for entry in report["checks"])

    # 20 ops around one kernel each, on one clock.
    assert checks["clock"]["result"]["kernels"] == 20
    assert checks["clock"]["result"]["inside"] == 20
    assert checks["clock"]["result"]["monotonic"] == 20
    costs = checks["step_time"]["result"]
    assert costs["kernels"] == 3 * 30 * 5 * 50
    assert costs["in_ops"] == pytest.approx(2 / 3)
    assert costs["lost"] == 0
    assert checks["no_api"]["result"] == {"kernels": 50, "links": 0, "calls": 0}
    assert checks["loaded"]["result"]["threads"] == 0
    assert checks["device_memory"]["result"]["reported_at_most"] == 4 * 3200000
    assert checks["recorded"]["result"]["files"] == 1
    assert list((tmp_path / "buffers").glob("*.rrc"))
    assert "## step_time" in (tmp_path / "report.md").read_text()


def test_out_of_time_is_said_and_not_hidden(tmp_path: Path, fake: str) -> None:
    finished = run("--out", str(tmp_path), "--fake", fake, "--seconds", "1", "--only", "clock")
    assert finished.returncode == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [entry["not_run"] for entry in report["checks"]] == ["out of time"]
