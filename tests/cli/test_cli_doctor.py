# SPDX-License-Identifier: Apache-2.0
"""reprise doctor: what works here, on machines with and without the parts."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_program import VERSION, Reprise
from doctor_checks import checks, doctor_of_nobody, for_nobody
from serving import ask, until

NAMES = {
    "reprise",
    "driver",
    "permissions",
    "gpu",
    "namespaces",
    "ring",
    "libcupti",
    "injection",
    "holders",
    "python",
    "socket",
    "server",
    "sessions",
    "versions",
    "records",
    "plan",
}


def test_a_machine_without_anything_is_not_broken(reprise: Reprise) -> None:
    empty = reprise.folder / "bin"
    empty.mkdir()

    found = checks(reprise, PATH=str(empty))

    assert set(found) >= NAMES
    assert found["ring"]["health"] == "ok"
    assert "no daemon runs" in found["socket"]["found"]
    assert "no Python answers" in found["python"]["found"]
    if not Path("/proc/driver/nvidia").exists():
        assert "no NVIDIA driver" in found["driver"]["found"]
    assert found["libcupti"]["health"] == "ok"  # found, or missed by nobody


def test_every_line_says_its_health_and_the_last_one_counts(reprise: Reprise) -> None:
    result = reprise("doctor")

    assert result.code == 0, result
    lines = [line for line in result.out.splitlines() if not line.startswith(" ")]
    assert all(line.split()[0] in ("ok", "warning") for line in lines[:-1])
    assert lines[-1].startswith("0 problems, ")


def test_a_daemon_and_its_version_are_found(
    reprise: Reprise,
    server: subprocess.Popen[str],
) -> None:
    found = checks(reprise)

    assert "a daemon listens" in found["socket"]["found"]
    assert found["server"]["found"].startswith(f"reprised {VERSION} at http://127.0.0.1:")
    assert found["store"]["health"] == "ok"


def test_a_socket_left_behind_is_a_problem(reprise: Reprise) -> None:
    path = reprise.environment["REPRISE_SOCKET"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(path)  # nobody listens

    found = checks(reprise, code=1)

    assert found["socket"]["health"] == "problem"
    assert "no process listens" in found["socket"]["found"]
    assert "reprise serve" in found["socket"]["advice"]
    assert "1 problem, " in reprise("doctor").out


def test_a_server_that_was_named_and_is_not_there_is_a_problem(
    reprise: Reprise,
) -> None:
    assert checks(reprise, "--server", "127.0.0.1:1", code=1)["server"]["health"] == "problem"


def test_names_who_has_the_injection_slot(reprise: Reprise) -> None:
    other = checks(reprise, CUDA_INJECTION64_PATH="/opt/nsys/libToolsInjection64.so")
    assert other["injection"]["health"] == "warning"
    assert "held by /opt/nsys/libToolsInjection64.so" in other["injection"]["found"]

    gone = checks(reprise, code=1, CUDA_INJECTION64_PATH="/gone/libreprise_agent.so")
    assert gone["injection"]["health"] == "problem"


def test_a_cupti_that_was_named_and_cannot_be_loaded_is_a_problem(
    reprise: Reprise,
) -> None:
    found = checks(reprise, code=1, REPRISE_CUPTI_PATH="/nowhere/libcupti.so")

    assert "cannot be loaded" in found["libcupti"]["found"]


def test_a_library_that_is_no_cupti_is_a_problem(reprise: Reprise) -> None:
    agent = reprise.program.parent.parent / "lib" / "libreprise_agent.so"

    found = checks(reprise, code=1, REPRISE_CUPTI_PATH=str(agent))

    assert found["libcupti"]["found"] == f"{agent}: is no working libcupti"


def test_the_python_that_is_named_is_asked(reprise: Reprise) -> None:
    found = checks(reprise, "--python", sys.executable)

    version = ".".join(str(part) for part in sys.version_info[:3])
    assert found["python"]["found"].startswith(version)
    assert "torch" in found
    wrong = checks(reprise, "--python", "/bin/true", code=1)
    assert wrong["python"]["health"] == "problem"


@pytest.mark.long
def test_a_python_that_is_slow_is_called_late_and_not_missing(reprise: Reprise) -> None:
    slow = reprise.folder / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)

    found = checks(reprise, "--python", str(slow))

    assert found["python"]["health"] == "warning"
    assert re.search(
        r"python did not answer within 10 s; the load is [\d.]+ on \d+ processor",
        found["python"]["found"],
    )


# ---- A round trip ---------------------------------------------------------------


def temporary_folders() -> set[Path]:
    return set(Path("/tmp").glob("reprise-doctor-*"))


def test_without_a_daemon_records_and_a_plan_go_through_a_private_one(reprise: Reprise) -> None:
    before = temporary_folders()

    found = checks(reprise, TMPDIR="")

    assert found["records"]["health"] == "ok"
    assert "through a ring to a private daemon" in found["records"]["found"]
    assert found["plan"]["health"] == "ok"
    assert "a graph of 6 ops" in found["plan"]["found"]
    assert "no daemon runs" in found["socket"]["found"]
    # Neither its folder nor anything in the user's own.
    assert temporary_folders() <= before
    assert not (Path(reprise.environment["HOME"]) / "state").exists()


def test_through_a_running_daemon_it_leaves_nothing_in_the_store(
    reprise: Reprise, server: subprocess.Popen[str]
) -> None:
    found = checks(reprise)

    assert found["records"]["health"] == "ok"
    assert reprise.environment["REPRISE_SOCKET"] in found["records"]["found"]
    assert found["plan"]["health"] == "ok"
    # 2,000 ops begin and end; a step and a clock record.
    assert int(found["records"]["found"].split()[0]) >= 4000
    until("nothing is left", 30, lambda: not left(reprise))


def left(reprise: Reprise) -> dict[str, int]:
    """Rows by table, but for the audit: that somebody had a session and asked for a plan stays."""
    state = Path(reprise.environment["HOME"]) / "state" / "reprise"
    found = {}
    for name in ("reprise.db", "spool.db"):
        with sqlite3.connect(f"file:{state / name}?mode=ro", uri=True) as store:
            tables = [row[0] for row in store.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )]  # fmt: skip
            for table in tables:
                found[table] = store.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return {t: n for t, n in found.items() if n and t not in ("migrations", "audit")}


@pytest.mark.long
def test_a_daemon_that_stands_still_is_a_problem_and_its_process_is_named(
    reprise: Reprise, server: subprocess.Popen[str]
) -> None:
    server.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        found = checks(reprise, code=1)
        took = time.monotonic() - began
    finally:
        server.send_signal(signal.SIGCONT)

    assert found["records"]["health"] == "problem"
    assert f"kill -CONT {server.pid}" in found["records"]["advice"]
    assert found["server"]["health"] == "problem"
    assert "plan" not in found  # what needs the records is not tried
    assert took < 60  # bounded, on any machine


@pytest.mark.long
def test_after_a_daemon_went_on_nothing_of_the_check_is_left(
    reprise: Reprise, server: subprocess.Popen[str]
) -> None:
    server.send_signal(signal.SIGSTOP)
    try:
        checks(reprise, code=1)
    finally:
        server.send_signal(signal.SIGCONT)

    # What the daemon finds in its queue then is a session whose process is gone.
    until("the daemon answers again", 30, lambda: reprise("status").code == 0)
    until("nothing is left", 30, lambda: not ask(reprise, "Query/ListRuns").get("runs"))


def test_an_agent_that_is_none_is_a_problem(reprise: Reprise) -> None:
    found = checks(reprise, code=1, REPRISE_AGENT="/nowhere/libreprise_agent.so")

    assert found["records"]["health"] == "problem"
    assert "/nowhere/libreprise_agent.so" in found["records"]["found"]


def test_a_daemon_that_does_not_start_is_said_and_breaks_nothing(reprise: Reprise) -> None:
    broken = reprise.folder / "reprised"
    broken.write_text("#!/bin/sh\necho reprised: no room >&2\nexit 1\n")
    broken.chmod(0o755)

    found = checks(reprise, REPRISE_DAEMON=str(broken))

    assert found["records"]["health"] == "warning"
    assert "no room" in found["records"]["found"]


@pytest.mark.skipif(os.geteuid() != 0, reason="is another user than root already")
def test_it_works_for_a_user_who_is_not_root(reprise: Reprise) -> None:
    with for_nobody(reprise, "bin/reprised", "lib/libreprise_agent.so") as folder:
        done = doctor_of_nobody(folder, "--json")

    said = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert said["records"]["health"] == "ok", done.stdout
    assert said["plan"]["health"] == "ok"
