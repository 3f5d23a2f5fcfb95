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


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--out"], ["--seconds", "soon"]])
def test_mistyped_options_are_usage_errors(arguments: list[str]) -> None:
    finished = run(*arguments)
    assert finished.returncode == 2
    assert finished.stderr.startswith("usage: tests/gpu/run")


def test_help_says_what_it_needs_and_how_it_ends() -> None:
    finished = run("--help")
    assert finished.returncode == 0
    for word in ("--out", "--bundle", "--python", "--seconds", "--only", "Exit codes", "no GPU"):
        assert word in finished.stdout


def test_the_agent_builds_by_itself(tmp_path: Path) -> None:
    """With CMake and a compiler, and nothing else of what the rest of the tree needs."""
    subprocess.run(
        ["cmake", "-S", str(HERE), "-B", str(tmp_path), "-DCMAKE_BUILD_TYPE=Release"],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        ["cmake", "--build", str(tmp_path), "--target", "reprise_agent", "-j", "2"],
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "lib/libreprise_agent.so").is_file()


@pytest.fixture(scope="module")
def fake() -> str:
    if not (BUILD / "lib/libfake_cupti_130.so").exists():
        pytest.fail(f"{BUILD}/lib/libfake_cupti_130.so: not built; run scripts/build --tests")
    return str(BUILD)


def test_every_check_runs_on_a_fake_cupti_and_is_in_the_report(tmp_path: Path, fake: str) -> None:
    # A build is a bundle: the demo then runs through its daemon, on the CPU.
    finished = run("--out", str(tmp_path), "--fake", fake, "--bundle", fake)
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
    demo = checks["demo"]["result"]
    assert demo["stage"] == "training under a plan"
    assert demo["peak_after"] < demo["peak_before"]
    assert "values made again bit for bit equal" in demo["report"]
    assert demo["timing"] == ""  # a CPU's ops are timed by the host
    assert demo["slowest"]
    assert list((tmp_path / "buffers").glob("*.rrc"))
    report_text = (tmp_path / "report.md").read_text()
    for entry in report["checks"]:
        assert f"## {entry['check']}\n\n{entry['about']}" in report_text
        assert not set(entry) - {"check", "about", "environment", "result", "seconds", "skipped"}
    assert report["machine"]["gpu"] == "none: fake CUPTI"
    # What needs a GPU is said to be skipped, with the reason.
    skipped = {name for name, entry in checks.items() if "skipped" in entry}
    assert skipped == {"cpp_example", "other_profiler", "cuda_graph", "memory_history"}
    # Small enough to be brought back: the report, and a few buffers.
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "report.json", "buffers"}


def test_out_of_time_is_said_and_not_hidden(tmp_path: Path, fake: str) -> None:
    finished = run("--out", str(tmp_path), "--fake", fake, "--seconds", "1", "--only", "clock")
    assert finished.returncode == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [entry["not_run"] for entry in report["checks"]] == ["out of time"]
