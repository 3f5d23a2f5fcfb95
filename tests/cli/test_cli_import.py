# SPDX-License-Identifier: Apache-2.0
"""reprise import: memory snapshots and real profiler traces become runs and step graphs."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_program import ROOT, Reprise
from serving import ask

sys.path.insert(0, str(ROOT / "tests" / "formats"))
from snapshots import BASE, block, event, snapshot, stack, write_large

FORMATS = ROOT / "tests" / "formats"


def write_with_torch(script: str, path: Path, *more: str) -> None:
    done = subprocess.run(
        [sys.executable, str(FORMATS / script), str(path), *more],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_snapshot_of_every_protocol_becomes_a_run(
    reprise: Reprise,
    server: subprocess.Popen[str],
) -> None:
    for protocol in (2, 3, 4, 5):
        path = reprise.folder / f"snapshot{protocol}.pickle"
        path.write_bytes(pickle.dumps(snapshot(), protocol=protocol))

        result = reprise("import", path.name, "--json")

        assert result.code == 0, result
        run = result.json()
        assert run["events"] == 5
        assert run["baseline_bytes"] == 3000
        assert run["peak_bytes"] == 6000
        assert run["duration_ns"] == 350_000
        assert not run["folded"]
        timeline = ask(reprise, "Query/GetTimeline", runId=run["run_id"], widthPx=100)
        assert int(timeline["measuredBase"]["peakBytes"]) == 6000
        assert int(timeline["measuredBase"]["stepNs"]) == 350_000
        assert int(timeline["measuredBase"]["peakAtNs"]) == 50_000


def test_show_names_who_was_alive_at_the_peak(
    reprise: Reprise,
    server: subprocess.Popen[str],
) -> None:
    (reprise.folder / "s.pickle").write_bytes(pickle.dumps(snapshot()))
    assert reprise("import", "s.pickle", "--name", "yesterday").code == 0

    shown = reprise("show", "latest")

    assert shown.code == 0, shown
    assert "yesterday  imported  1 step on " in shown.out
    assert "pid" not in shown.out.splitlines()[0]
    assert "AT THE MEASURED PEAK (5.9 KiB" in shown.out
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["2.9", "KiB", "there", "before", "the", "step"] in lines
    assert ["2.0", "KiB", "model.py:12", "forward"] in lines
    assert ["1000", "B", "model.py:11", "forward"] in lines
    assert "which op reads which tensor is not in a memory snapshot" in shown.out


def test_owners_are_known_where_entries_share_their_stacks(
    reprise: Reprise,
    server: subprocess.Popen[str],
) -> None:
    # As PyTorch writes it: one list for each traceback, shared by the block and its event.
    whole = snapshot()
    whole["segments"][0]["blocks"] = []
    whole["device_traces"] = [[]]
    for i in range(3000):
        address, frames = BASE + 512 * i, stack(20) if i % 2 else stack(30)
        whole["segments"][0]["blocks"].append(
            block(address, 512, 500, "active_allocated") | {"frames": frames}
        )
        whole["device_traces"][0].append(event("alloc", address, 500, 100 + i, frames))
    (reprise.folder / "s.pickle").write_bytes(pickle.dumps(whole))
    assert reprise("import", "s.pickle").code == 0

    shown = reprise("show", "latest").out

    assert "unknown" not in shown
    assert shown.count("model.py:20 forward") == shown.count("model.py:30 forward") == 1
    assert shown.count("732.4 KiB") == 2


@pytest.mark.long
def test_every_owner_is_known_in_a_file_that_pytorch_itself_wrote(reprise: Reprise) -> None:
    """9,000 allocations at three places; a third of each is freed before the peak."""
    write_with_torch("torch_snapshot.py", reprise.folder / "s.pickle")
    assert reprise("import", "s.pickle").code == 0

    shown = reprise("show", "latest").out

    assert "AT THE MEASURED PEAK (2.9 MiB" in shown
    assert "unknown" not in shown
    for name in ("embed", "attend", "project"):
        line = rf" 1000.0 KiB  torch_snapshot.py:\d+ {name}  \(2000 allocations\)"
        assert len(re.findall(line, shown)) == 1, shown


def test_a_snapshot_is_no_step_graph(reprise: Reprise) -> None:
    (reprise.folder / "s.pickle").write_bytes(pickle.dumps(snapshot()))

    said = reprise.fails(1, "import", "s.pickle", "-o", "s.graph.json")

    assert said.startswith("s.pickle: which op reads which tensor is not in a memory snapshot")
    assert not (reprise.folder / "s.graph.json").exists()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch hacked",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_wants_to_run_code_is_refused(reprise: Reprise, protocol: int) -> None:
    evil = snapshot() | {"external_annotations": [Evil()]}
    (reprise.folder / "s.pickle").write_bytes(pickle.dumps(evil, protocol=protocol))

    said = reprise.fails(1, "import", "s.pickle")

    assert said.startswith("s.pickle: byte ")
    assert "wants to run code" in said
    assert "GLOBAL" in said
    assert not (reprise.folder / "hacked").exists()


def test_what_is_wrong_with_a_file_is_one_sentence(reprise: Reprise) -> None:
    folder = reprise.folder
    (folder / "empty").write_bytes(b"")
    (folder / "old").write_bytes(pickle.dumps(snapshot(), protocol=0))
    (folder / "cut").write_bytes(pickle.dumps(snapshot())[:700])
    (folder / "other").write_bytes(pickle.dumps({"a": 1}))
    (folder / "text").write_text("hello")
    (folder / "json").write_text('{"a": 1}')
    (folder / "damaged.gz").write_bytes(gzip.compress(b"{}" * 9999)[:50])
    (folder / "folder").mkdir()

    assert "there is no such file" in reprise.fails(1, "import", "nothing")
    assert "is a folder" in reprise.fails(1, "import", "folder")
    assert "is empty" in reprise.fails(1, "import", "empty")
    assert "neither a memory snapshot" in reprise.fails(1, "import", "old")
    assert "byte 700: the pickle ends too early" in reprise.fails(1, "import", "cut")
    assert "no memory snapshot" in reprise.fails(1, "import", "other")
    assert "neither a memory snapshot" in reprise.fails(1, "import", "text")
    assert "no traceEvents" in reprise.fails(1, "import", "json")
    assert "damaged.gz: " in reprise.fails(1, "import", "damaged.gz")


def test_a_file_is_imported_and_shown_without_a_server(reprise: Reprise) -> None:
    (reprise.folder / "s.pickle").write_bytes(pickle.dumps(snapshot()))

    assert reprise("import", "s.pickle", "--name", "alone").code == 0
    assert "alone  imported" in reprise("show", "latest").out


def test_without_the_server_that_was_named_nothing_is_imported(reprise: Reprise) -> None:
    (reprise.folder / "s.pickle").write_bytes(pickle.dumps(snapshot()))

    assert "does not answer" in reprise.fails(4, "import", "s.pickle", "--server", "127.0.0.1:1")
    assert "only this machine" in reprise.fails(2, "import", "s.pickle", "--server", "1.2.3.4:1")
    reprise.fails(2, "import")
    reprise.fails(2, "import", "s.pickle", "--device", "-1")


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_with_torch("profiled_step.py", path)
    return path


def test_a_trace_with_stacks_knows_the_modules_of_its_ops(reprise: Reprise, tmp_path: Path) -> None:
    write_with_torch("profiled_step.py", tmp_path / "trace.json", "stacks")

    reprise("import", str(tmp_path / "trace.json"), "-o", "step.graph.json")

    graph = json.loads((reprise.folder / "step.graph.json").read_text())
    inside = {op["module"] for op in graph["ops"] if op["name"] == "aten::linear"}
    assert len(inside) == 6
    assert all(re.fullmatch(r"Sequential_\d\.Linear_\d", module) for module in inside)


def test_a_real_trace_becomes_a_graph_that_can_be_planned(reprise: Reprise, trace: Path) -> None:
    result = reprise("import", str(trace), "-o", "step.graph.json", "--json")

    assert result.code == 0, result
    said = result.json()
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    last = max(steps, key=lambda e: e["ts"])
    inside = sorted(
        (
            e
            for e in events
            if e["name"] == "[memory]" and last["ts"] <= e["ts"] < last["ts"] + last["dur"]
        ),
        key=lambda e: e["ts"],
    )
    peak = max(e["args"]["Total Allocated"] for e in inside)
    assert said["peak_bytes"] == peak
    assert abs(said["step_ns"] - last["dur"] * 1000) <= 2

    graph = json.loads((reprise.folder / "step.graph.json").read_text())
    names = [op["name"] for op in graph["ops"]]
    assert names[0] == "reprise.step_begin"
    assert names.count("aten::linear") == 6
    assert names.count("aten::gelu") == 3
    backward = [op for op in graph["ops"] if op["phase"] == "backward"]
    assert {"aten::mm", "aten::gelu_backward"} <= {op["name"] for op in backward}
    assert {op["phase"] for op in graph["ops"]} == {"forward", "backward", "optimizer"}
    # The memory of the graph is the memory of the trace, to the byte.
    shown = reprise("show", "step.graph.json", "--json").json()
    assert shown["base_peak_bytes"] == peak
    assert sum(op["time_ns"] for op in graph["ops"]) == said["step_ns"]

    planned = reprise("plan", "step.graph.json", "--budget", "0.9x", "--json")
    assert planned.code in (0, 3), planned
    assert planned.json()["base_peak_bytes"] == peak
    assert "is not in a trace" in graph["note"]


def test_gelus_inputs_are_found_by_their_size(reprise: Reprise, trace: Path) -> None:
    """What a linear makes of 64 x 96 floats is what the gelu behind it reads."""
    reprise("import", str(trace), "-o", "g.json")
    graph = json.loads((reprise.folder / "g.json").read_text())
    ops = graph["ops"]

    for position, op in enumerate(ops):
        if op["name"] != "aten::gelu":
            continue
        before = next(o for o in reversed(ops[:position]) if o["name"] == "aten::linear")
        assert op["reads"] == before["writes"]


def test_a_trace_becomes_a_run_with_both_curves(
    reprise: Reprise,
    server: subprocess.Popen[str],
    trace: Path,
) -> None:
    packed = reprise.folder / "trace.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))

    run = reprise("import", packed.name, "--json").json()

    timeline = ask(reprise, "Query/GetTimeline", runId=run["run_id"])
    assert int(timeline["measuredBase"]["peakBytes"]) == run["peak_bytes"]
    assert int(timeline["predictedBase"]["peakBytes"]) == run["peak_bytes"]
    shown = reprise("show", run["run_id"])
    assert "aten::linear" in shown.out
    assert "is not in a trace" in shown.out


def test_a_step_is_chosen_by_its_number(reprise: Reprise, trace: Path) -> None:
    events = json.loads(trace.read_text())["traceEvents"]
    numbers = sorted(
        int(e["name"].split("#")[1]) for e in events if e["name"].startswith("ProfilerStep#")
    )

    chosen = reprise(
        "import", str(trace), "-o", "a.json", "--step", str(numbers[0]), "--json"
    ).json()
    wrong = reprise.fails(1, "import", str(trace), "-o", "b.json", "--step", "999")

    first = next(e for e in events if e["name"] == f"ProfilerStep#{numbers[0]}")
    assert abs(chosen["step_ns"] - first["dur"] * 1000) <= 2
    assert f"has no step 999, but {numbers[0]} to {numbers[-1]}" in wrong


@pytest.mark.long
def test_a_large_snapshot_is_imported_in_bounded_memory(
    reprise: Reprise,
    server: subprocess.Popen[str],
) -> None:
    """60 MB here; a whole gigabyte where REPRISE_TEST_SNAPSHOT_BYTES says so."""
    size = int(os.environ.get("REPRISE_TEST_SNAPSHOT_BYTES", 60_000_000))
    path = reprise.folder / "large.pickle"
    with path.open("wb") as file:
        events, peak = write_large(file, size)
    try:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss

        result = reprise("import", path.name, "--json", timeout=1200)

        assert result.code == 0, result
        assert result.json()["events"] == events
        assert result.json()["peak_bytes"] == peak
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(f"{path.stat().st_size} bytes, {events} events, {most} KiB resident at most")
        # ru_maxrss is the largest child ever: only an import that grew it says something.
        assert most <= max(before, 256 << 10)
    finally:
        path.unlink()


def test_a_token_that_the_server_does_not_take_is_no_error_of_the_file(
    reprise: Reprise,
    server: subprocess.Popen[str],
) -> None:
    # So large that the upload fails while the file is still being read.
    with (reprise.folder / "large.pickle").open("wb") as file:
        write_large(file, 4 << 20)
    wrong = reprise.folder / "token"
    wrong.write_text("wrong\n")

    result = reprise("--token-file", str(wrong), "import", "large.pickle")

    assert result.code == 1, result
    assert "byte" not in result.err
    assert "does not take this token" in result.err
    assert "--token-file" in result.err
