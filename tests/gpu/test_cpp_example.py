# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/train_mlp.cu: a loop without any framework, through the C ABI, under its plan.

Where there is no GPU it is compiled as plain C++, where its kernels are loops; with nvcc it is
compiled as it is shipped, as tests/gpu/bundle does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("REPRISE_BUILD", ROOT / "build"))
SMALL = ("--layers", "12", "--width", "64", "--batch", "256", "--steps", "8")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("example") / "train_mlp"
    flags = ("-O2", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-x", "c++")
    source = ("-I", ROOT / "profiler/include", ROOT / "tests/gpu/train_mlp.cu", "-o", out)
    library = ("-L", BUILD / "lib", "-lreprise_agent", f"-Wl,-rpath,{BUILD / 'lib'}")
    subprocess.run(["g++", *flags, *source, *library], check=True)
    return out


def run(program: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a world of its own, with `reprise run` and its private daemon."""
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    return subprocess.run(
        [str(BUILD / "bin/reprise"), "run", "--", str(program), *SMALL, *arguments],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(runtime),
            "XDG_STATE_HOME": str(folder / "state"),
            "REPRISE_SOCKET": str(runtime / "agent.sock"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def peaks(text: str, planned: bool) -> set[str]:
    ending = ", planned" if planned else ""
    return set(re.findall(rf"^step \d+: .* peak ([\d.]+) MiB{ending}$", text, re.MULTILINE))


def test_a_loop_without_a_framework_is_planned_and_computes_the_same(
    program: Path, tmp_path: Path
) -> None:
    finished = run(program, tmp_path, "--budget", "0.5x")

    assert finished.returncode == 0, finished
    assert "weights after a planned step: equal bit for bit" in finished.stdout
    (before,), (after,) = peaks(finished.stdout, False), peaks(finished.stdout, True)
    assert float(after) < float(before)
    # The command's last words are the server's verdict.
    assert "gradients bit for bit equal in 1 check" in finished.stdout + finished.stderr


def test_a_budget_that_cannot_be_met_lets_it_train_on(program: Path, tmp_path: Path) -> None:
    finished = run(program, tmp_path, "--budget", "1KiB")

    assert finished.returncode == 0, finished
    assert "no plan: " in finished.stdout
    assert "training goes on without one" in finished.stdout
    assert not peaks(finished.stdout, planned=True)


@pytest.mark.long
def test_nvcc_compiles_it_as_it_is_shipped(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    flags = ("-O2", "-std=c++20", "--extended-lambda", "-I", ROOT / "profiler/include")
    library = ("-L", BUILD / "lib", "-lreprise_agent")
    out = tmp_path / "train_mlp"
    subprocess.run(
        [nvcc, *flags, ROOT / "tests/gpu/train_mlp.cu", "-o", out, *library],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert out.is_file()
