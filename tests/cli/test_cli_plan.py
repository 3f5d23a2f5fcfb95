# SPDX-License-Identifier: Apache-2.0
"""reprise plan: the sentence, the file, the exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from check_plan import InvalidPlan, check
from cli_program import Graph, Reprise


def test_prints_the_sentence_and_writes_the_plan(
    reprise: Reprise, graph: Graph, graph_file: Path
) -> None:
    result = reprise("plan", "small.graph.json", "--budget", "1324")

    assert result.code == 0, result
    lines = result.out.splitlines()
    assert lines[0] == (
        "It fits in 1.3 KiB.  Peak 1.3 KiB (was 1.3 KiB)   Step 101 ns (+5.2 %)   proven optimal"
    )
    assert lines[-1] == "  wrote small.plan.json"
    plan = json.loads((reprise.folder / "small.plan.json").read_text())
    check(graph, plan)
    assert plan["recomputed_ops"] == [0]
    assert plan["sentence"] == lines[0]


def test_json_is_one_object_on_stdout_and_writes_nothing(
    reprise: Reprise, graph: Graph, graph_file: Path
) -> None:
    result = reprise("plan", "small.graph.json", "--budget", "1324", "--json")

    assert result.code == 0
    assert result.err == ""
    check(graph, result.json())
    assert sorted(p.name for p in reprise.folder.iterdir()) == ["small.graph.json"]


def test_half_of_the_dynamic_memory_is_meant_by_x(reprise: Reprise, graph_file: Path) -> None:
    # 1000 + floor(0.95 * 374) = 1355.
    result = reprise("plan", "small.graph.json", "--budget", "0.95x", "--json")

    assert result.json()["budget_bytes"] == 1355


def test_an_impossible_budget_exits_with_3_and_names_the_op(
    reprise: Reprise, graph: Graph, graph_file: Path
) -> None:
    result = reprise("plan", "small.graph.json", "--budget", "1300", "--json")

    assert result.code == 3
    plan = result.json()
    assert plan["feasible"] is False
    assert plan["smallest_budget_bytes"] == 1324
    assert plan["blocking_op"] == 4
    check(graph, plan)
    text = reprise("plan", "small.graph.json", "--budget", "1300")
    assert text.code == 3
    assert text.out.startswith("Nothing fits in ")
    assert "op 4 b2 needs at least" in text.out
    assert "the same with --budget 1324   1.3 KiB, the smallest with a known plan" in text.err
    assert reprise("plan", "small.graph.json", "--budget", "1324").code == 0
    (reprise.folder / "small.plan.json").unlink()
    assert not (reprise.folder / "small.plan.json").exists()


def test_the_budget_may_stand_in_the_environment(reprise: Reprise, graph_file: Path) -> None:
    result = reprise("plan", "small.graph.json", "--json", REPRISE_BUDGET="1324")

    assert result.json()["budget_bytes"] == 1324


def test_a_file_is_replaced_only_when_asked(reprise: Reprise, graph_file: Path) -> None:
    (reprise.folder / "small.plan.json").write_text("mine")

    beside = reprise("plan", "small.graph.json", "--budget", "1324")
    again = reprise("plan", "small.graph.json", "--budget", "1324")
    named = reprise("plan", "small.graph.json", "--budget", "1324", "-o", "small.plan.json")

    # Another plan stands beside the first.
    assert beside.code == 0, beside
    assert "wrote small.1324.plan.json" in beside.out
    assert "reprise.plan/1" in (reprise.folder / "small.1324.plan.json").read_text()
    # A file that cannot be written takes no word of the verdict away.
    for result, file in ((again, "small.1324.plan.json"), (named, "small.plan.json")):
        assert result.code == 1, result
        assert result.out.startswith("It fits in ")
        assert f"{file}: exists already" in result.err
        assert "--force" in result.err
    assert (reprise.folder / "small.plan.json").read_text() == "mine"
    assert reprise("plan", "small.graph.json", "--budget", "1324", "--force").code == 0
    assert "reprise.plan/1" in (reprise.folder / "small.plan.json").read_text()


def test_a_budget_in_which_nothing_fits_exits_with_3_whatever_files_there_are(
    reprise: Reprise, graph_file: Path
) -> None:
    (reprise.folder / "small.plan.json").write_text("mine")

    result = reprise("plan", "small.graph.json", "--budget", "10")

    assert result.code == 3, result
    assert (reprise.folder / "small.plan.json").read_text() == "mine"


def test_out_names_the_file(reprise: Reprise, graph_file: Path) -> None:
    (reprise.folder / "sub").mkdir()

    result = reprise("plan", "small.graph.json", "-b", "1324", "--out", "sub/p.json", "--json")

    assert result.json() == json.loads((reprise.folder / "sub/p.json").read_text())


def test_the_plan_of_a_graph_in_a_read_only_folder_is_here(
    reprise: Reprise, graph_file: Path
) -> None:
    # /proc is read-only for everyone, root included; a file there is readable.
    fd = os.open(graph_file, os.O_RDONLY)
    try:
        done = subprocess.run(
            [reprise.program, "plan", f"/proc/self/fd/{fd}", "--budget", "1324"],
            cwd=reprise.folder,
            env=reprise.environment,
            pass_fds=[fd],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(fd)

    assert done.returncode == 0, done
    assert f"wrote {fd}.plan.json" in done.stdout
    assert (reprise.folder / f"{fd}.plan.json").exists()


def test_a_read_only_target_is_refused_before_the_work(reprise: Reprise, graph_file: Path) -> None:
    said = reprise.fails(
        1, "plan", "small.graph.json", "--budget", "1324", "--out", "/proc/plan.json"
    )

    assert said.startswith("/proc/plan.json: ")


def test_the_same_question_has_the_same_answer(reprise: Reprise, graph_file: Path) -> None:
    ask = ("plan", "small.graph.json", "--budget", "1324", "--json", "--seed", "7")

    one, two = reprise(*ask).json(), reprise(*ask).json()

    assert one["plan_id"] == two["plan_id"]
    assert one["schedule"] == two["schedule"]


def test_the_tape_executor_has_its_own_rules(reprise: Reprise, graph_file: Path) -> None:
    result = reprise("plan", "small.graph.json", "-b", "1400", "--executor", "tape", "--json")

    assert result.code == 0, result
    assert result.json()["executor"] == "tape"
    assert result.json()["free_policy"] == "program"


def test_a_graph_file_is_planned_for_a_rewritten_tensorflow_graph(
    reprise: Reprise, graph_file: Path
) -> None:
    result = reprise("plan", "small.graph.json", "-b", "1400", "--executor", "tf-graph", "--json")

    assert result.code == 0, result
    assert result.json()["executor"] == "tf-graph"
    assert result.json()["free_policy"] == "eager"
    check(json.loads(graph_file.read_text()), result.json())
    assert reprise("sweep", "small.graph.json", "--executor", "tf-graph").code == 0
    assert "tf-graph" in reprise.fails(
        2, "plan", "small.graph.json", "-b", "1400", "--executor", "tf"
    )


def test_a_restricted_executor_costs_at_least_what_a_free_one_does(reprise: Reprise) -> None:
    assert reprise.generate("unet", "--ops", "200").code == 0
    graph = json.loads((reprise.folder / "unet-200.graph.json").read_text())
    ask = ("plan", "unet-200.graph.json", "--json", "--budget", "0.7x", "--gap", "0%")

    free = reprise(*ask).json()
    restricted = reprise(*ask, "--executor", "once").json()

    check(graph, restricted)
    assert restricted["executor"] == "once"
    assert restricted["overhead"] >= free["bound"] - 1e-9
    runs = [op for what, op in restricted["schedule"] if what == "exec"]
    assert max(runs.count(op) for op in set(runs)) <= 2


def test_a_schedule_that_its_executor_does_not_run_is_refused(reprise: Reprise) -> None:
    assert reprise.generate("unet", "--ops", "200").code == 0
    ask = ("plan", "unet-200.graph.json", "--budget", "0.7x", "--executor", "once")
    assert reprise(*ask, "--out", "plan.json").code == 0
    assert reprise("explain", "plan.json").code == 0
    plan = json.loads((reprise.folder / "plan.json").read_text())

    # What runs again runs before the backward op in front of its reader.
    schedule = plan["schedule"]
    execs = [at for at, (what, _) in enumerate(schedule) if what == "exec"]
    ran: set[int] = set()
    again = []
    for at in execs:
        if schedule[at][1] in ran:
            again.append(at)
        ran.add(schedule[at][1])
    at = again[0]
    before = max(e for e in execs if e < at)
    schedule.insert(before, schedule.pop(at))
    (reprise.folder / "plan.json").write_text(json.dumps(plan))

    said = reprise.fails(1, "explain", "plan.json")
    assert "not a plan of executor once: schedule: run " in said
    graph = json.loads((reprise.folder / "unet-200.graph.json").read_text())
    with pytest.raises(InvalidPlan, match="saved set"):
        check(graph, plan)


@pytest.mark.parametrize("executor", ["nested", "region"])
def test_an_executor_that_is_gone_is_refused_with_those_that_exist(
    reprise: Reprise, graph_file: Path, executor: str
) -> None:
    said = reprise.fails(2, "plan", "small.graph.json", "-b", "1400", "--executor", executor)

    must = "must be one of tape, graph, tf-graph, joint, free and once"
    assert said == f"--executor {executor}: {must}"


@pytest.mark.parametrize("executor", ["nested", "region"])
def test_a_plan_file_for_an_executor_that_is_gone_is_read(
    reprise: Reprise, graph_file: Path, executor: str
) -> None:
    ask = ("plan", "small.graph.json", "-b", "1400", "--executor", "tape")
    assert reprise(*ask, "--out", "plan.json").code == 0
    plan = json.loads((reprise.folder / "plan.json").read_text())
    storages = len(json.loads(graph_file.read_text())["storages"])
    plan |= {"executor": executor, "regions": [[0, 2], [0, 1]], "lazy_region": True}
    plan["levels"] = [0] * storages
    (reprise.folder / "plan.json").write_text(json.dumps(plan))

    assert reprise("explain", "plan.json").code == 0
    assert reprise("show", "plan.json").code == 0
    assert reprise("verify", "small.graph.json", "plan.json").code == 0


@pytest.mark.parametrize(
    "strategy", ["memory", "speed", "collection", "per-block", "save-all", "auto"]
)
def test_auto_is_never_worse_than_a_plan_by_name(reprise: Reprise, strategy: str) -> None:
    assert reprise.generate("transformer", "--ops", "300").code == 0
    ask = ("plan", "transformer-300.graph.json", "--json", "--budget")
    graph = json.loads((reprise.folder / "transformer-300.graph.json").read_text())

    named = reprise(*ask, "1.0x", "--strategy", strategy).json()
    check(graph, named)
    auto = reprise(*ask, str(named["peak_bytes"]), "--gap", "0.5%").json()

    assert auto["overhead"] <= named["overhead"]


def test_a_plan_by_name_that_does_not_fit_says_what_it_needs(
    reprise: Reprise, graph_file: Path
) -> None:
    result = reprise("plan", "small.graph.json", "--budget", "1330", "--strategy", "save-all")

    assert result.code == 3
    assert result.out.startswith('The plan "save-all" does not fit in 1.3 KiB: it needs 1.4 KiB')


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("8G", "8GiB"),
        ("-1", "must be positive"),
        ("0", "must be positive"),
        ("abc", "does not start with a number"),
        ("90%", "x"),
        ("fit", "x"),
        ("99999999999999999999", "8 EiB"),
        ("1e9", "budget"),
    ],
)
def test_a_budget_that_means_nothing_is_wrong_usage(
    reprise: Reprise, graph_file: Path, budget: str, says: str
) -> None:
    said = reprise.fails(2, "plan", "small.graph.json", f"--budget={budget}")

    assert "budget" in said
    assert says in said


def test_flags_that_mean_nothing_are_wrong_usage(reprise: Reprise, graph_file: Path) -> None:
    ask = ("plan", "small.graph.json", "--budget", "1324")
    assert "--frobnicate" in reprise.fails(2, *ask, "--frobnicate")
    assert "--executor" in reprise.fails(2, *ask, "--executor", "magic")
    assert "--time-limit" in reprise.fails(2, *ask, "--time-limit", "soon")
    assert "--seed" in reprise.fails(2, *ask, "--seed", "x")
    assert "--strategy" in reprise.fails(2, *ask, "--strategy", "best")
    for gap in ("1", "-1%", "x", "nan%", "1001%", ""):
        assert "--gap" in reprise.fails(2, *ask, "--gap", gap)
    assert "--budget" in reprise.fails(2, "plan", "small.graph.json")
    assert "GRAPH" in reprise.fails(2, "plan", "--budget", "1324")


def test_no_file_is_written_when_the_graph_is_wrong(reprise: Reprise) -> None:
    (reprise.folder / "g.json").write_text("{")

    reprise.fails(1, "plan", "g.json", "--budget", "1324")

    assert [p.name for p in reprise.folder.iterdir()] == ["g.json"]


def test_colour_and_progress_stay_away_from_pipes(reprise: Reprise, graph_file: Path) -> None:
    result = reprise("plan", "small.graph.json", "--budget", "1324")

    assert "\033" not in result.out + result.err
    assert "\r" not in result.err


def test_a_terminal_has_colour_unless_told_otherwise(reprise: Reprise, graph_file: Path) -> None:
    ask = ("plan", "small.graph.json", "--budget", "1324", "--force")

    assert "\033[1;32mIt fits" in reprise.on_terminal(*ask)
    assert "\033[1" not in reprise.on_terminal(*ask, NO_COLOR="1")
    assert "\033[1" not in reprise.on_terminal(*ask, TERM="dumb")
    assert "\033[1" not in reprise.on_terminal(*ask, "--no-color")
    assert "\033" not in reprise.on_terminal(*ask, "--quiet")
    assert "\033" not in reprise.on_terminal(*ask, "--json")


def hard_graph(ops: int) -> Graph:
    """A long chain with skips at awkward sizes: nothing that is solved at once."""
    storages = [{"id": i, "bytes": 900 + (i * 7919) % 1013} for i in range(2 * ops)]
    chain = []
    for i in range(ops):
        reads = [j for j in (i - 1, i - 3, i - 11) if j >= 0]
        chain.append(("forward", reads, i))
    for i in range(ops):
        mirror = ops - 1 - i
        reads = [j for j in (ops + i - 1, mirror, mirror - 1, mirror - 5) if j >= 0]
        chain.append(("backward", sorted(set(reads)), ops + i))
    return {
        "format": "reprise.graph/1",
        "name": "hard",
        "source": "",
        "note": "",
        "static_bytes": 0,
        "required": [2 * ops - 1],
        "storages": storages,
        "ops": [
            {
                "id": i,
                "name": f"op{i}",
                "phase": phase,
                "time_ns": 100 + (i * 104729) % 997,
                "workspace_bytes": 0,
                "reads": reads,
                "writes": [out],
                "mutates": [],
                "kind": "pure",
            }
            for i, (phase, reads, out) in enumerate(chain)
        ],
    }


def test_ctrl_c_hands_over_the_best_plan_so_far(reprise: Reprise) -> None:
    graph = hard_graph(600)
    (reprise.folder / "hard.json").write_text(json.dumps(graph))
    process = subprocess.Popen(
        [
            reprise.program,
            "plan",
            "hard.json",
            "-b",
            "0.4x",
            "--time-limit",
            "100s",
            "--json",
        ],
        cwd=reprise.folder,
        env=reprise.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Until it has caught the signal's default: SIGINT is bit 1 of SigCgt.
    status = Path(f"/proc/{process.pid}/status")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        caught = next(x for x in status.read_text().splitlines() if x.startswith("SigCgt"))
        if int(caught.split()[1], 16) & 2:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode in (0, 130), err
    if process.returncode == 0:
        plan = json.loads(out)
        check(graph, plan)
        # Solved before the signal came, or marked.
        assert plan.get("interrupted", False) or plan["overhead"] - plan["bound"] < 0.0011
    else:
        assert "interrupted" in err


def test_a_time_limit_gives_the_best_plan_so_far(reprise: Reprise) -> None:
    graph = hard_graph(200)
    (reprise.folder / "hard.json").write_text(json.dumps(graph))

    result = reprise("plan", "hard.json", "-b", "0.5x", "--time-limit", "300ms", "--json")

    assert result.code in (0, 5), result.err
    if result.code == 0:
        check(graph, result.json())
