# SPDX-License-Identifier: Apache-2.0
"""What the owner of a store does with it: removing runs, and stores of releases before."""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_program import ROOT, Reprise
from serving import until

OLD_RUN = "01a204ee-2f91-764c-9617-0c6698b23e05"
DAY_NS = 86_400 * 10**9


@pytest.fixture
def serving(reprise: Reprise, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `reprise serve` with more flags; it is up when this returns."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> subprocess.Popen[str]:
        log = (tmp_path / "serve.log").open("w")
        process = subprocess.Popen(
            [reprise.program, "serve", "--listen", "127.0.0.1:0", *flags],
            env=reprise.environment,
            cwd=reprise.folder,
            stdout=log,
            stderr=log,
            text=True,
        )
        started.append(process)
        where = Path(reprise.environment["XDG_RUNTIME_DIR"]) / "server.json"

        def is_up() -> bool:
            assert process.poll() is None, (tmp_path / "serve.log").read_text()
            return where.exists()

        until("the server listens", 30, is_up)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            assert process.wait(timeout=30) == 0, (tmp_path / "serve.log").read_text()


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    assert process.wait(timeout=30) == 0


def database(reprise: Reprise) -> Path:
    return Path(reprise.environment["XDG_STATE_HOME"]) / "reprise/reprise.db"


def store_of_before(reprise: Reprise) -> None:
    """Puts the store of the first release where the server looks for its own."""
    path = database(reprise)
    path.parent.mkdir(parents=True, mode=0o700)
    connection = sqlite3.connect(path)
    connection.executescript((ROOT / "tests/fixtures/store-0.2.0.sql").read_text())
    connection.close()
    path.chmod(0o644)  # as that release left it


def add_runs(reprise: Reprise, ages_days: list[int], running: str = "") -> None:
    """Rows of runs that ended so long ago, named by that; `running` has not ended."""
    connection = sqlite3.connect(database(reprise))
    for age in ages_days:
        at = time.time_ns() - age * DAY_NS
        connection.execute(
            "INSERT INTO runs (run_id, name, state, started_ns, ended_ns) VALUES (?, ?, 2, ?, ?)",
            (f"run-{age}", f"{age} days", at, at),
        )
    if running:
        connection.execute(
            "INSERT INTO runs (run_id, name, state, started_ns) VALUES (?, 'job', 1, 1)", (running,)
        )
    connection.commit()
    connection.close()


def runs(reprise: Reprise) -> set[str]:
    connection = sqlite3.connect(database(reprise))
    found = {row[0] for row in connection.execute("SELECT run_id FROM runs")}
    connection.close()
    return found


def with_runs(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]], *ages: int, running: str = ""
) -> None:
    """A server with runs of these ages in its store."""
    stop(serving())
    add_runs(reprise, list(ages), running)
    serving("--keep-runs-for", "forever")


def test_run_ids_are_offered_to_completion_scripts_newest_first(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]]
) -> None:
    with_runs(reprise, serving, 3, 1)

    offered = reprise("--completion", "words", "--", "show", "").out

    assert offered.split() == [":files", "latest", "run-1", "run-3"]


def test_a_store_of_the_first_release_opens_and_nothing_is_lost(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]]
) -> None:
    store_of_before(reprise)
    before = sqlite3.connect(database(reprise))
    before.execute("UPDATE sessions SET who = 'uid 1234'")
    before.commit()
    tables = [
        row[0]
        for row in before.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        # Who did what is in the log now, and verdicts are made again.
        if not row[0].startswith("sqlite_") and row[0] not in ("audit", "verdicts")
    ]
    columns = {
        table: ", ".join(row[1] for row in before.execute(f"PRAGMA table_info({table})"))
        for table in tables
    }
    rows = {
        table: before.execute(f"SELECT {columns[table]} FROM {table}").fetchall()
        for table in tables
    }
    before.close()

    process = serving("--keep-runs-for", "forever")

    shown = reprise("show", OLD_RUN, "--json").json()
    assert (shown["name"], shown["steps"], shown["records"]) == ("t.py", 12, 272551)
    assert shown["state"] == "RUN_STATE_FINISHED"
    assert shown["owner"] == "uid 1234", "whoever opened its first session"
    verdict = shown["verdict"]
    assert verdict["validated"]
    assert (verdict["base_peak_bytes"], verdict["budget_bytes"]) == (214152, 171926)
    assert (verdict["measured_peak_bytes"], verdict["planned_steps"]) == (165512, 7)
    assert verdict["checks"] == 2
    explained = reprise("explain", shown["plan_id"], "--json")
    assert explained.code == 0, explained.err
    stop(process)
    after = sqlite3.connect(database(reprise))
    for table in tables:
        assert after.execute(f"SELECT {columns[table]} FROM {table}").fetchall() == rows[table], (
            table
        )
    assert after.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    after.close()
    assert database(reprise).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("schema", range(1, 7))
def test_a_store_of_before_the_first_release_is_refused_and_left_as_it_is(
    reprise: Reprise, schema: int
) -> None:
    store_of_before(reprise)
    before = sqlite3.connect(database(reprise))
    before.execute(f"PRAGMA user_version={schema}")
    before.close()

    refused = reprise("serve", "--listen", "127.0.0.1:0")

    assert refused.code == 1, refused
    said = refused.err.strip().splitlines()[-1]
    assert f"the database has schema {schema}, which is older than the first release" in said
    assert "move it away or use another database" in said
    after = sqlite3.connect(database(reprise))
    assert after.execute("PRAGMA user_version").fetchone() == (schema,)
    assert after.execute("SELECT run_id FROM runs").fetchall() == [(OLD_RUN,)]
    after.close()


def test_runs_that_are_named_go_with_all_that_was_made_of_them(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]]
) -> None:
    store_of_before(reprise)
    process = serving("--keep-runs-for", "forever")

    refused = reprise("rm", OLD_RUN[:8])
    assert refused.code == 2
    assert "add --yes" in refused.err
    assert runs(reprise) == {OLD_RUN}
    removed = reprise("rm", OLD_RUN[:8], "--yes")
    assert removed.code == 0, removed.err
    assert OLD_RUN in removed.out
    assert "1 run removed" in removed.out
    assert reprise("rm", OLD_RUN, "--yes").code == 1

    stop(process)
    left = sqlite3.connect(database(reprise))
    for table in ("runs", "sessions", "chunks", "names", "graphs", "plans", "steps", "checks"):
        assert left.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    left.close()


def test_rules_choose_by_age_and_number_and_leave_what_is_under_way(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]]
) -> None:
    with_runs(reprise, serving, 1, 10, 20, 40, 50, running="now")

    # Both rules: older than 5 days and not among the three newest.
    assert "2 runs removed" in reprise("rm", "--older-than", "5d", "--keep-last", "3", "-y").out
    assert runs(reprise) == {"now", "run-1", "run-10", "run-20"}
    assert "1 run removed" in reprise("rm", "--older-than", "15d", "--yes").out
    told = reprise("rm", "--keep-last", "1", "--yes", "--json").json()
    assert [run["run_id"] for run in told["runs"]] == ["run-10"]
    assert runs(reprise) == {"now", "run-1"}
    under_way = reprise("rm", "run-1", "now", "--yes")
    assert under_way.code == 1
    assert "is under way" in under_way.err
    assert runs(reprise) == {"now", "run-1"}


def test_what_to_remove_must_be_said_in_one_way(reprise: Reprise) -> None:
    for words in ([], ["a", "--keep-last", "3"], ["--older-than", "7"], ["--older-than", "x"]):
        assert reprise("rm", "--yes", *words).code == 2, words


def test_a_person_is_asked_and_may_say_no(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]]
) -> None:
    with_runs(reprise, serving, 1, 2)
    for answer, left in (("n\n", {"run-1", "run-2"}), ("y\n", {"run-1"})):
        ours, theirs = pty.openpty()
        asked = subprocess.Popen(
            [reprise.program, "rm", "run-2"],
            env=reprise.environment,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.write(ours, answer.encode())
        _, said = asked.communicate(timeout=60)
        os.close(ours)
        os.close(theirs)
        assert asked.returncode == 0
        assert "Remove 1 run? [y/N]" in said
        assert runs(reprise) == left


def test_old_runs_go_by_themselves_and_young_ones_stay(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]]
) -> None:
    stop(serving())
    add_runs(reprise, [1, 29, 31, 400], running="now")

    serving("--keep-runs-for", "30d")

    until("old runs are gone", 30, lambda: runs(reprise) == {"now", "run-1", "run-29"})


def test_the_oldest_runs_go_while_the_store_is_too_large(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]]
) -> None:
    stop(serving())
    add_runs(reprise, [1, 2, 3])
    connection = sqlite3.connect(database(reprise))
    for age in (1, 2, 3):
        connection.execute(
            "INSERT INTO sessions VALUES"
            " (?, ?, 'h', 0, 0, '', 0, 0, 1, 0, '', 0, 0, 2, 1, 0, 0, 0, '', '')",
            (f"s{age}", f"run-{age}"),
        )
        connection.execute(
            "INSERT INTO names (session_id, id, text) VALUES (?, 1, ?)", (f"s{age}", "x" * 2**20)
        )
    connection.commit()
    connection.close()

    process = serving("--keep-runs-for", "forever", "--keep-bytes", "2MiB")

    until("the oldest are gone", 30, lambda: runs(reprise) == {"run-1"})
    stop(process)
    assert database(reprise).stat().st_size < 2 * 2**20


def test_limits_that_cannot_be_read_are_named(reprise: Reprise) -> None:
    for flag, value in (
        ("--keep-runs-for", "30"),
        ("--keep-bytes", "5"),
        ("--keep-bytes", "-1GiB"),
        ("--max-run-bytes", "1GB"),
    ):
        refused = reprise("serve", f"{flag}={value}")
        assert refused.code == 2
        assert flag in refused.err


FULL_DISK = """
set -e
mount -t tmpfs -o size=4m none disk
start() {
  rm -f run/server.json
  "$REPRISED" --listen 127.0.0.1:0 --data-dir disk/data --agent-socket run/agent.sock 2>>log &
  for _ in $(seq 600); do
    if [ -e run/server.json ] || ! kill -0 $! 2>>log; then break; fi
    sleep 0.05
  done
}
start
kill -9 $!
cat /dev/zero >disk/filler 2>>log || true
start
cp run/server.json started.json
"$REPRISE" status --json >status.json
kill $!
wait $!
"""


def test_a_daemon_that_was_killed_on_a_full_disk_starts_there_again(
    reprise: Reprise, tmp_path: Path
) -> None:
    folder = tmp_path / "full"
    for name in ("disk", "run"):
        (folder / name).mkdir(mode=0o700, parents=True)
    namespace = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody mount a small disk (unshare --mount)")
    environment = {
        **reprise.environment,
        "REPRISE": str(reprise.program),
        "REPRISED": str(Path(reprise.program).with_name("reprised")),
        "REPRISE_SOCKET": str(folder / "run/agent.sock"),
    }

    run = subprocess.run(
        [*namespace, "bash", "-c", FULL_DISK],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    log = (folder / "log").read_text()
    assert run.returncode == 0, run.stderr + log
    assert "starts on the room that was kept for this" in log
    status = json.loads((folder / "status.json").read_text())
    assert status["data_dir"] == "disk/data"


def test_the_log_names_who_removed_a_run(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    stop(serving())
    add_runs(reprise, [3, 1])
    serving("--keep-runs-for", "forever", "--log-format", "json")
    assert reprise("rm", "run-3", "--yes").code == 0
    assert reprise("window", "run-1", "--steps", "2").code != 0

    lines = [json.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]
    changes = [line for line in lines if line["event"] == "change"]

    assert [(one["action"], one["outcome"], one["run_id"]) for one in changes] == [
        ("remove", "ok", "run-3"),
        ("window", "failed_precondition", "run-1"),
    ]
    assert {one["who"] for one in changes} == {f"uid {os.getuid()}"}
    assert [one["subject"] for one in changes] == ["named runs", "2 steps"]
    assert all(one["peer"].startswith("127.0.0.1:") for one in changes)
    assert changes[0]["message"].endswith("): remove run run-3, named runs: ok")


def test_the_log_is_one_json_object_a_line_where_that_is_asked_for(
    reprise: Reprise, serving: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    stop(serving())
    add_runs(reprise, [9])
    process = serving("--keep-runs-for", "forever", "--log-format", "json")
    assert reprise("rm", "run-9", "--yes").code == 0
    stop(process)

    lines = [json.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]

    assert [line["event"] for line in lines] == [
        "listening",
        "page",
        "ready",
        "run_removed",
        "change",
        "shutting_down",
        "stopped",
    ]
    assert all(line["level"] == "info" and line["time"].endswith("Z") for line in lines)
    assert lines[0]["pid"] == process.pid
    assert lines[3]["run_id"] == "run-9"
    assert lines[3]["message"] == "run run-9 removed: asked for"
    refused = reprise("serve", "--log-format", "xml")
    assert refused.code == 2
    assert "--log-format" in refused.err
