# SPDX-License-Identifier: Apache-2.0
"""The kit where it arrives: an empty folder with what travels, a Python that has PyTorch alone, no
compiler in PATH, and the fake device with the fake CUPTI. `scripts/test kit` runs this.

Needs `tests/fakegpu/setup --torch 2.11.0`, a build, and minutes; pytest does not collect it by
itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import script_names
from runner import RAN, SKIPPED, Figures
from table import rows_of

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-fakegpu-2.11.0"
# All that the scripts may need besides Python: no compiler, no pip.
TOOLS = ("bash", "cat", "dirname", "env")
MOST_BYTES = 45 << 20
MOST_PRINTED = 12000
MOST_FILES = 8


@pytest.fixture(scope="module")
def arrived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder, and in it what git does not ignore, and the kit."""
    subprocess.run([ROOT / "tests/gpu/bundle"], check=True, cwd=ROOT)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.split(b"\0")  # fmt: skip
    names = sorted({name for name in listed if name and (ROOT / os.fsdecode(name)).exists()})
    packed = tmp_path_factory.mktemp("travels") / "tree.tar"
    subprocess.run(
        ["tar", "-cf", packed, "--null", "-T", "-"],
        cwd=ROOT, check=True, input=b"\0".join([*names, b"gpu-kit"]),
    )  # fmt: skip
    assert packed.stat().st_size <= MOST_BYTES
    folder = tmp_path_factory.mktemp("arrived")
    subprocess.run(["tar", "-xf", packed, "-C", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a machine that has this Python and these tools, and the fake device."""
    home = tmp_path_factory.mktemp("home")
    tools = home / "bin"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    library = ENVIRONMENT / "lib"
    return {
        "PATH": str(tools),
        "HOME": str(home),
        "LD_LIBRARY_PATH": str(library),
        "LD_PRELOAD": f"{library}/libfakecudart.so:{library}/libfakecupti.so",
        "FAKEGPU_KERNELS": str(library / "libfakekernels.so"),
        "FAKEGPU_CUBLAS_WORKSPACE": "1048576",  # a hundredth, as all else
        "OMP_NUM_THREADS": "1",
    }


def run(arrived: Path, environment: dict[str, str], script: str, *more: str) -> list[Figures]:
    """The rows of a script, which must end in time and come back within the limits."""
    out = arrived / f"report-{script}"
    command = [f"tests/gpu/{script}", "--rehearsal", "--python", str(ENVIRONMENT / "bin/python")]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--out", str(out), *more],
        cwd=arrived, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert time.monotonic() - began <= script_names.SECONDS[script], done.stdout
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(out / 'log.txt').read_text()}"
    assert len(done.stdout) + len(done.stderr) <= MOST_PRINTED
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) <= MOST_FILES
    return rows_of(out / "report.jsonl")


def blocks(rows: list[Figures]) -> set[str]:
    return {row["block"] for row in rows}


def skipped(rows: list[Figures]) -> set[str]:
    assert {row["outcome"] for row in rows} <= {RAN, SKIPPED}
    return {f"{row['block']}/{row['row']}" for row in rows if row["outcome"] == SKIPPED}


@pytest.fixture(scope="module")
def first(arrived: Path, environment: dict[str, str]) -> list[Figures]:
    return run(arrived, environment, "first")


@pytest.fixture(scope="module")
def second(arrived: Path, environment: dict[str, str]) -> list[Figures]:
    return run(arrived, environment, "second")


def test_the_first_script_ends_in_time_and_every_block_has_its_rows(first: list[Figures]) -> None:
    assert blocks(first) == {
        *("facts", "windows", "gpt", "headline", "fits", "bits", "launch"),
    }
    assert skipped(first) == {"facts/nvidia-smi"}  # the fake has no driver's program


def test_the_second_script_ends_in_time_and_every_block_has_its_rows(second: list[Figures]) -> None:
    assert blocks(second) == {"compiled", "half", "cost", "others", "programs"}
    assert skipped(second) == set()


def test_the_parts_that_are_compiled_against_torch_arrived(first: list[Figures]) -> None:
    versions = next(row["figures"] for row in first if row["row"] == "versions")

    assert (versions["engine"], versions["probe"]) == ("True", "True")
    for row in first:
        in_python = row["figures"].get("in_python", "")
        assert in_python == ("REPRISE_FAST=0" if row["row"] == "0.7x in Python" else "")


def test_kernels_lie_in_their_ops_in_later_windows_too(first: list[Figures]) -> None:
    found = next(row["figures"] for row in first if row["row"] == "five")

    assert found["in_ops"] == 1
    assert found["not_on_our_clock"] == 0
    for number in (1, 2, 5):
        assert found[f"window_{number}"]["kernels"] > 0
        assert found[f"window_{number}"]["before"] == 0


def test_jobs_keep_their_budgets_and_their_bits(first: list[Figures]) -> None:
    planned = [row for row in first if row["figures"].get("announced")]

    assert len(planned) >= 12
    for row in planned:
        figures = row["figures"]
        assert figures["requested"] <= figures["announced"] * 1.001, row
        assert figures["wrong"] == 0, row
        assert "differ" not in (figures.get("weights_beside_plain") or figures.get("bits", "")), row


def test_the_hosts_time_is_said_by_op_of_the_jobs_own_graph(first: list[Figures]) -> None:
    rows = {row["row"]: row["figures"] for row in first if row["block"] == "launch"}

    for name in ("observed", "0.7x", "0.7x in Python"):
        assert rows[name]["ops"] > 100
        assert rows[name]["times_from"] == "kernels"
        assert "host_us_an_op" in rows[name]


def test_what_does_not_fit_fits(first: list[Figures]) -> None:
    rows = {row["row"]: row["figures"] for row in first if row["block"] == "fits"}

    for step in ("first", "second"):
        assert "out of memory" in rows[f"plain, {step} step"]["ran_out"]
        assert rows[f"reprise, {step} step"]["weights_beside_plain"] == "equal"


def test_the_third_script_runs_what_is_left(
    arrived: Path, environment: dict[str, str], first: list[Figures], second: list[Figures]
) -> None:
    after = [f"--after={arrived}/report-{script}" for script in ("first", "second")]

    rows = run(arrived, environment, "third", *after)

    assert blocks(rows) == {"facts", "rest"}
    assert skipped(rows) == {"facts/nvidia-smi"}
