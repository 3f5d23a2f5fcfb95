# SPDX-License-Identifier: Apache-2.0
"""bench/planner runs: its tables are printed, its arithmetic is right. No figure is asserted."""

from __future__ import annotations

import json
import subprocess
import sys

from cli_program import ROOT, Reprise

sys.path.insert(0, str(ROOT / "bench" / "planner"))
import graphs


def test_prints_the_tables_that_need_no_outside_file(reprise: Reprise) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "bench" / "planner" / "run.py"),
            "--reprise",
            str(reprise.program),
            "--tables",
            "checkmate,chains,scale,blocks",
            "--quick",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert "skipped: --graphs names no folder" in done.stdout
    assert "| 16 | 4 |" in done.stdout
    assert "| 1000 |" in done.stdout
    assert "| transformer | 1000 |" in done.stdout


def test_peers_run_on_the_same_graph_or_are_named(reprise: Reprise) -> None:
    folder = reprise.folder / "graphs"
    folder.mkdir()
    chain = graphs.chain(12)
    (folder / "checkmate_vgg16.json").write_text(json.dumps(chain))

    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "bench" / "planner" / "run.py"),
            *("--reprise", str(reprise.program), "--graphs", str(folder)),
            *("--tables", "checkmate", "--quick", "--peer-seconds", "10"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    head = next(c for c in lines if c.startswith("| graph ")).split(" | ")
    cells = next(c for c in lines if c.startswith("| checkmate_vgg16 ")).split(" | ")
    assert [c for c in cells if "Error" in c or "Traceback" in c] == []
    absent = [line for line in lines if line.startswith("without ")]
    assert len(cells) == len(head) == 10 + 2 + 4 - len(absent)


def test_revolves_closed_form() -> None:
    # Griewank and Walther: t(100, s) = 316, 222, 178 for s = 5, 10, 20; the first forward has 99.
    assert [graphs.revolve_extra(100, s) + 99 for s in (5, 10, 20)] == [316, 222, 178]
    assert [graphs.revolve_extra(1000, s) + 999 for s in (10, 30)] == [3636, 2472]


def test_saved_storages_become_a_valid_schedule() -> None:
    chain = graphs.chain(8)
    base_peak, base_time = graphs.base(chain)

    peak, time = graphs.evaluate(chain, graphs.recompute_all_but(chain, {0, 3}))

    # x_1, x_2 and x_4 .. x_7 are made again, once each.
    assert time == base_time + 6 * 1000
    assert peak < base_peak
