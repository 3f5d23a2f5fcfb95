# SPDX-License-Identifier: Apache-2.0
"""The scripts where there is no GPU: what they say, and what becomes of rows that hang, die or run
out of memory. The real blocks run in `scripts/test kit`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import kit as kits
import records
from daemon import Daemon
from runner import Block, Figures, Report, Row, lines, run_script
from table import MOST_TABLE, rows_of, table

HERE = Path(__file__).parent


def run(script: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REPRISE_")}
    return subprocess.run(
        [str(HERE / "run"), str(script), "--python", sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
@pytest.mark.parametrize("script", ["first", "second", "third"])
def test_without_a_gpu_a_script_says_so_and_leaves_nothing(script: str, tmp_path: Path) -> None:
    finished = run(script, "--out", str(tmp_path / "report"))

    assert finished.returncode == 3
    assert "not run: there is no NVIDIA driver" in finished.stderr
    assert not (tmp_path / "report").exists()


def test_without_a_kit_it_says_how_to_make_one(tmp_path: Path) -> None:
    finished = run("first", "--rehearsal", "--kit", str(tmp_path), "--out", str(tmp_path / "out"))

    assert finished.returncode == 3
    assert f"{tmp_path}: is not a kit; make one with tests/gpu/bundle" in finished.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["fourth"],
        ["first", "--nonsense"],
        ["first", "--out"],
        ["first", "--seconds", "soon"],
        ["third", "--after", "nowhere"],
        [""],
    ],
)
def test_mistyped_options_are_usage_errors(arguments: list[str]) -> None:
    finished = run(*arguments)

    assert finished.returncode == 2
    assert "usage: tests/gpu/first|second|third" in finished.stderr


def test_help_says_what_it_needs_and_how_it_ends() -> None:
    finished = run("first", "--help")

    assert finished.returncode == 0
    for word in ("--out", "--kit", "--python", "--seconds", "--only", "Exit codes", "no GPU"):
        assert word in finished.stdout


# ---- rows that do not end well ----

BLOCKS = """
import os, time
from runner import Block, Row, Skip

def well(here):
    here.say(step_ms=1.5, requested=3 << 20)

def hangs(here):
    here.say(known_before=7)
    time.sleep(600)

def dies(here):
    here.say(known_before=8)
    os.kill(os.getpid(), 11)

def raises(here):
    raise ValueError("no such network")

class OutOfMemoryError(RuntimeError):
    pass

def runs_out(here):
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\\nMore words")

def skips(here):
    raise Skip("no nvcc")

def needs(here):
    here.say(twice=2 * here.found("well")["step_ms"])

def needs_what_died(here):
    here.found("dies")

def leaves_one_running(here):
    import subprocess
    child = subprocess.Popen(["sleep", "600"])
    here.say(pid=child.pid)

def environment(here):
    here.say(said=os.environ["PYTORCH_WORD"], found=here.found("well")["step_ms"])

BLOCKS = (
    Block("bad", "What becomes of the others?", 30, (
        Row("hangs", hangs, 0.5), Row("dies", dies), Row("raises", raises),
        Row("runs out", runs_out), Row("skips", skips),
    )),
    Block("late", "Has no time", 0.0, ()),
    Block("good", "They run", 30, (
        Row("well", well), Row("needs", needs), Row("needs what died", needs_what_died),
        Row("leaves one running", leaves_one_running),
        Row("environment", environment, environment={"PYTORCH_WORD": "yes"}),
    )),
)
"""


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    path = tmp_path / "own_blocks.py"
    path.write_text(BLOCKS)
    return path


def by_name(out: Path) -> dict[str, Figures]:
    return {one["row"]: one for one in rows_of(out / "report.jsonl")}


def test_whatever_becomes_of_a_row_the_others_run_and_the_report_says_why(
    blocks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    finished = run(blocks, "--out", str(out))

    rows = by_name(out)
    assert finished.returncode == 1, finished.stderr
    found = {name: (row["outcome"], row["why"]) for name, row in rows.items()}
    assert found.pop("leaves one running") == ("ran", "")
    assert found == {
        "hangs": ("did not end", "was ended after 0 s"),
        "dies": ("failed", "signal SIGSEGV: no word"),
        "raises": ("failed", "exit 1: ValueError: no such network"),
        "runs out": ("out of memory", "CUDA out of memory. Tried to allocate 2.00 GiB."),
        "skips": ("skipped", "no nvcc"),
        "well": ("ran", ""),
        "needs": ("ran", ""),
        "needs what died": ("skipped", "needs good/dies, which did not run through"),
        "environment": ("ran", ""),
    }
    # What they knew before is there.
    assert rows["hangs"]["figures"]["known_before"] == 7
    assert rows["dies"]["figures"]["known_before"] == 8
    assert rows["needs"]["figures"]["twice"] == 3.0
    assert rows["environment"]["figures"] == {"said": "yes", "found": 1.5}
    # So are the reasons, where a traceback has more of them; and in the table.
    assert "ValueError: no such network" in (out / "log.txt").read_text()
    assert "bad/hangs" in finished.stdout
    assert "** did not end: was ended after 0 s" in finished.stdout
    assert "5 of 10 rows ran" not in finished.stdout
    assert "4 of 10 rows ran" in finished.stdout
    assert "requested 3.0" in finished.stdout


def test_what_a_row_leaves_running_is_ended(blocks: Path, tmp_path: Path) -> None:
    run(blocks, "--out", str(tmp_path / "out"), "--only", "good")

    pid = by_name(tmp_path / "out")["leaves one running"]["figures"]["pid"]
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_rows_for_which_no_time_is_left_are_named(blocks: Path, tmp_path: Path) -> None:
    finished = run(blocks, "--out", str(tmp_path / "out"), "--seconds", "3")

    rows = by_name(tmp_path / "out")
    assert finished.returncode == 1
    assert len(rows) == 10
    assert {row["outcome"] for row in rows.values()} == {"not run"}
    assert {row["why"] for row in rows.values()} == {"there was no time left for it"}


@pytest.mark.long
def test_rows_that_their_block_had_no_time_for_run_at_the_end(tmp_path: Path) -> None:
    own = tmp_path / "short.py"
    own.write_text(
        BLOCKS.split("BLOCKS = (")[0]
        + "def slow(here):\n    time.sleep(5.5)\n    here.say(step_ms=2.0)\n"
        + 'BLOCKS = (Block("a", "?", 5, (Row("cut", slow), Row("none", well))),\n'
        + '          Block("b", "?", 6, (Row("in time", well),)))\n'
    )
    finished = run(own, "--out", str(tmp_path / "out"), "--seconds", "40")

    assert finished.returncode == 0, finished.stdout
    outcomes = [
        (line["row"], line["outcome"])
        for line in lines(tmp_path / "out/report.jsonl")
        if "outcome" in line
    ]
    assert outcomes == [
        ("cut", "did not end"),
        ("none", "not run"),
        ("in time", "ran"),
        ("cut", "ran"),
        ("none", "ran"),
    ]


def test_a_block_that_is_not_there_is_named(blocks: Path, tmp_path: Path) -> None:
    finished = run(blocks, "--out", str(tmp_path / "out"), "--only", "good,other")

    assert finished.returncode == 1
    assert "--only: there is no block other" in finished.stderr


def test_an_earlier_report_is_what_later_rows_build_on(blocks: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    run(blocks, "--out", str(first), "--only", "good")
    later = tmp_path / "later.py"
    later.write_text(
        BLOCKS.split("BLOCKS = (")[0]
        + 'BLOCKS = (Block("good", "Again", 9, (Row("needs", needs),)),)\n'
    )
    finished = run(later, "--out", str(second), "--after", str(first))

    assert finished.returncode == 0, finished.stderr
    assert by_name(second)["needs"]["figures"]["twice"] == 3.0


# ---- the report and the kit ----


def write(path: Path, *rows: Figures) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_report_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    row = {"block": "b", "row": "r", "figures": {"step_ms": 2.0}}
    path = write(tmp_path / "report.jsonl", {"script": "first"}, row)
    path.write_text(path.read_text() + '{"block": "b", "row"')

    assert [line.get("block") for line in lines(path)] == [None, "b"]
    assert "b/r (? s)  ** unfinished:   step ms 2" in table(path)


def test_the_table_fits_the_end_of_a_terminals_output(tmp_path: Path) -> None:
    path = write(
        tmp_path / "report.jsonl",
        *(
            {"block": "b", "row": f"row {n}", "outcome": "ran", "seconds": 1.0,
             "figures": {f"figure_{m}": "x" * 50 for m in range(20)}}
            for n in range(90)
        ),
    )  # fmt: skip

    text = table(path)

    assert len(text) <= MOST_TABLE
    assert all(f"b/row {n} " in text for n in range(90))


def test_a_kit_is_unpacked_with_programs_that_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = tmp_path / "kit"
    kit.mkdir()
    (kit / "about.json").write_text('{"torch": "9.9"}')
    with zipfile.ZipFile(kit / "reprise-1-py3-none-any.whl", "w") as wheel:
        program = zipfile.ZipInfo("reprise/bin/reprised")
        program.external_attr = 0o100755 << 16
        wheel.writestr(program, "#!/bin/sh\n")
    for name in ("PYTHONPATH", "REPRISE_AGENT", "REPRISE_DAEMON"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert kits.unpack(kit, tmp_path / "into") == {"torch": "9.9"}
    assert os.access(os.environ["REPRISE_DAEMON"], os.X_OK)
    assert kits.command().endswith("/site/reprise/bin/reprise")
    (kit / "about.json").unlink()
    with pytest.raises(kits.NotRun, match="is not a kit"):
        kits.unpack(kit, tmp_path / "other")


def test_a_daemon_that_ended_is_started_again_for_the_next_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "reprised"
    program.write_text('#!/bin/sh\ntouch "$2"\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setenv("REPRISE_DAEMON", str(program))
    monkeypatch.setenv("REPRISE_SOCKET", "")
    daemon = Daemon(tmp_path)

    assert daemon.ensure() == ""
    first = daemon.child
    assert first is not None
    assert daemon.ensure() == ""
    assert daemon.child is first
    first.kill()
    first.wait()
    assert daemon.ensure() == ""
    assert daemon.child is not first
    daemon.stop()
    assert daemon.child is not None
    assert daemon.child.returncode is not None


def test_a_daemon_that_does_not_run_here_is_named_and_rows_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "reprised"
    program.write_text("#!/bin/sh\necho version GLIBC_2.99 not found\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("REPRISE_SOCKET", "")
    monkeypatch.setenv("REPRISE_DAEMON", str(program))
    assert Daemon(tmp_path).ensure() == "version GLIBC_2.99 not found"
    monkeypatch.setenv("REPRISE_DAEMON", str(tmp_path / "none"))
    why = Daemon(tmp_path).ensure()
    assert "No such file" in why

    report = Report(tmp_path / "report.jsonl")
    ran = Row("ran", lambda here: here.say(step_ms=1.0))
    run_script(
        (Block("one", "?", 20, (ran, Row("again", ran.run))),), report, tmp_path, tmp_path,
        seconds=20, rehearsal=True, ready=lambda: why,
    )  # fmt: skip
    assert [line["daemon"] for line in lines(report.path) if "daemon" in line] == [why]
    assert {row["outcome"] for row in rows_of(report.path)} == {"ran"}
    assert f"daemon {why}" in table(report.path)


def test_kernels_outside_of_their_op_are_counted() -> None:
    pytest.importorskip("torch")
    from blocks.windows import where

    def kernel(start: int, dur: int, correlation: int) -> records.Kernel:
        return records.Kernel(start, dur, correlation, 0, 0, 0)

    found = records.Records(
        kernels=[kernel(1100, 100, 1), kernel(900, 150, 2), kernel(1900, 300, 3), kernel(5, 1, 9)],
        link={1: 7, 2: 7, 3: 7},
        begin={7: (1, 1000)},
        end={7: 2000},
    )

    assert where(found) == {
        "kernels": 3,
        "before": 1,
        "at_most_us_before": 0.1,
        "after": 1,
        "at_most_us_after": 0.2,
        "untimed": 0,
    }
    assert where(found, 8)["kernels"] == 0
